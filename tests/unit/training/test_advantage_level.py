"""The key that chooses between advantages of tokens and of actions."""

import pytest

from atlas_rl.errors import ConfigError
from atlas_rl.training.config import ADVANTAGE_LEVELS, atlas_config


@pytest.mark.parametrize("level", ADVANTAGE_LEVELS)
def test_a_known_level_is_read(level: str) -> None:
    assert atlas_config({"atlas": {"run": {"id": "r"}, "advantage": {"level": level}}}).advantage.level == level


def test_tokens_are_the_default() -> None:
    assert atlas_config({"atlas": {"run": {"id": "r"}}}).advantage.level == "token"


def test_an_unknown_level_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as refused:
        atlas_config({"atlas": {"run": {"id": "r"}, "advantage": {"level": "episode"}}})
    assert str(refused.value) == "atlas.advantage.level must be one of token, turn, got 'episode'"
