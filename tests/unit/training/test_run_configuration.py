"""Our own keys: read into dataclasses, or refused with the dotted name."""

from decimal import Decimal
from typing import Any

import pytest

from atlas_rl.errors import ConfigError
from atlas_rl.training.config import atlas_config


def node(**atlas: Any) -> dict[str, Any]:
    return {"atlas": {"run": {"id": "r"}, **atlas}}


def test_defaults_fill_what_is_not_given():
    config = atlas_config(node())
    assert (config.run.id, config.run.seed, config.run.train_fraction) == ("r", 0, 1.0)
    assert (config.runtime.max_turns, config.runtime.grammar) == (9, True)


def test_a_price_is_exact_whatever_yaml_made_of_it():
    config = atlas_config(node(reward={"preset": "custom", "per_explore": 0.1, "per_dollar": 0}))
    assert config.reward.per_explore == Decimal("0.1")


@pytest.mark.parametrize(
    ("atlas", "message"),
    [
        ({"run": {"id": "r", "sede": 1}}, "unknown key atlas.run.sede; did you mean atlas.run.seed?"),
        ({"run": {}}, "atlas.run.id is not set; give atlas.run.id=VALUE"),
        ({"run": {"id": "a/b"}}, "atlas.run.id must be made of letters, digits and '-._', got 'a/b'"),
        ({"run": {"id": "r", "seed": "x"}}, "atlas.run.seed must be of type int, got 'x'"),
        ({"run": {"id": "r", "seed": True}}, "atlas.run.seed must be of type int, got True"),
        ({"run": {"id": "r", "train_fraction": 2}}, "atlas.run.train_fraction must lie in [0, 1], got 2.0"),
        ({"runtime": {"max_turns": 0}}, "atlas.runtime.max_turns must be at least 1, got 0"),
        ({"runtime": 3}, "atlas.runtime must be a mapping, got 3"),
    ],
)
def test_a_wrong_key_is_refused_in_one_line(atlas: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as refused:
        atlas_config(node(**atlas))
    assert str(refused.value) == message
