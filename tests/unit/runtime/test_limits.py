from typing import Any

import pytest

from atlas_rl.errors import ConfigError
from atlas_rl.runtime.identity import Identity
from atlas_rl.runtime.limits import Limits


def test_default_limits_are_those_of_the_specification() -> None:
    assert Limits() == Limits(max_prompt_length=8192, max_response_length=16384, max_turns=9)


@pytest.mark.parametrize("name", ["max_prompt_length", "max_response_length", "max_turns"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_a_limit_that_is_no_positive_integer_is_refused_by_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^limits\.{name} must be an integer of at least 1, got {value}$"):
        Limits(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("run_id", ""), ("uid", None), ("session_id", -1), ("attempt_id", 0.0), ("global_steps", True), ("run_seed", "7")],
)
def test_an_identity_that_no_record_can_hold_is_refused_by_name(name: str, value: Any) -> None:
    facts: dict[str, Any] = {
        "run_id": "r",
        "uid": "u",
        "session_id": 0,
        "attempt_id": 0,
        "global_steps": 0,
        "run_seed": 0,
    }
    with pytest.raises(ConfigError, match=rf"^identity\.{name} must be"):
        Identity(**(facts | {name: value}))


def test_the_request_id_names_the_episode_and_not_the_turn() -> None:
    episode = Identity(run_id="r", uid="u1", session_id=2, attempt_id=1, global_steps=5, run_seed=None)
    assert episode.request_id == "u1_2_a1"
