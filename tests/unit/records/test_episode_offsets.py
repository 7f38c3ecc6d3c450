"""Offsets that overlap or leave the row are refused, and the message names the trajectory and the field."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from record_builders import trajectory

from atlas_rl.records.episode import Episode

#   sampled | observed | sampled | observed | sampled
#   0..5    | 6..9     | 10..15  | 16..19   | 20..25
Damage = Callable[[dict[str, Any]], Any]


def set_event(index: int, **changes: int) -> Damage:
    return lambda episode: episode["events"][index].update(changes)


def set_generation(index: int, **changes: int) -> Damage:
    return lambda episode: episode["generations"][index].update(changes)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (set_generation(1, response_offset=5), "generation 1 starts at 5, inside the one before, which ends at 6"),
        (set_generation(2, response_offset=21), "generations end at 27, beyond response_tokens=26"),
        (set_event(0, action_end_offset=7), "event 0 acts on [0, 7), outside the sampled tokens of turn 0"),
        (set_event(1, action_start_offset=9), "event 1 acts on [9, 16), outside the sampled tokens of turn 1"),
        (
            set_event(0, observation_offset=5),
            "event 0 has observation_offset=5, observation_length=4, but only [6, 10)",
        ),
        (
            set_event(0, observation_length=5),
            "event 0 has observation_offset=6, observation_length=5, but only [6, 10)",
        ),
        (set_event(1, observation_offset=25), "event 1 has observation_offset=25, observation_length=4, but only [16,"),
    ],
)
def test_offsets_that_overlap_or_leave_the_row_are_refused(damage: Damage, said: str) -> None:
    fields = trajectory("u1", explores=2).episode.model_dump()
    damage(fields)
    with pytest.raises(ValidationError) as caught:
        Episode.model_validate(fields)
    assert f"episode u1_0: {said}" in str(caught.value)


def test_an_observation_behind_the_last_turn_may_reach_the_end_of_the_row_and_no_further() -> None:
    fields = trajectory("u1", explores=2).episode.model_dump()
    fields["events"][1]["observation_length"] = 4
    fields["generations"] = fields["generations"][:2]
    fields |= {"submit_executed": False, "events": fields["events"][:2], "model_tokens": 12, "response_tokens": 20}
    assert Episode.model_validate(fields).response_tokens == 20
    with pytest.raises(ValidationError, match=r"event 1 has .* but only \[16, 19\) is free"):
        Episode.model_validate(fields | {"response_tokens": 19})
