import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from model_fixtures import row_showing, urn_rows

from atlas_rl.errors import ConfigError, DataError
from atlas_rl.models.demonstrations import Demonstration, Protocol, StopConfig, demonstrate, plurality_answer
from atlas_rl.runtime.limits import Limits
from atlas_rl.tasks.row import Row

LIMITS = Limits(max_prompt_length=512, max_response_length=256)


def played(protocol: Protocol, row: Row, num_explores: int, limits: Limits = LIMITS) -> Demonstration:
    return asyncio.run(demonstrate(protocol, row, num_explores, limits))


def test_the_answer_is_the_plurality_of_what_was_revealed(protocol: Protocol) -> None:
    row = row_showing("ABBCCCDD")
    assert [played(protocol, row, k).answer for k in (1, 3, 6)] == ["A", "B", "C"]


def test_answers_that_tie_give_the_first_seen(protocol: Protocol) -> None:
    assert plurality_answer(protocol, row_showing("CAACDDBB"), 4) == "C"


def test_answers_that_submit_does_not_take_have_no_vote(protocol: Protocol) -> None:
    assert plurality_answer(protocol, row_showing(["", "", "E", "E", "B", "A", "A", "A"]), 5) == "B"
    assert plurality_answer(protocol, row_showing(["", "", "E", "E", "B", "A", "A", "A"]), 4) is None


def test_the_demonstrator_goes_on_until_it_has_something_to_submit(protocol: Protocol) -> None:
    demonstration = played(protocol, row_showing(["", "E", "B", "A", "A", "A", "A", "A"]), 1)
    assert (demonstration.num_explores, demonstration.answer) == (3, "B")


def test_a_row_without_any_answer_is_refused(protocol: Protocol) -> None:
    row = row_showing([""] * 8)
    assert not protocol.is_demonstrable(row)
    with pytest.raises(DataError, match="no candidate has an answer that submit takes"):
        played(protocol, row, 5)


def test_the_mask_covers_the_demonstrators_turns_alone(protocol: Protocol) -> None:
    demonstration = played(protocol, row_showing("ABBCCCDD"), 1)
    #                                       explore       observation with its glue   submit
    assert demonstration.response_mask == (*[1] * 4, *[0] * 8, *[1] * 6)
    assert demonstration.response_ids == (
        *protocol.call_ids("explore", {}),
        *protocol.template.observation_ids("A"),
        *protocol.call_ids("submit", {"answer": "A"}),
    )


def test_the_answer_tokens_start_after_the_choice_to_submit(protocol: Protocol, tokenizer: Any) -> None:
    demonstration = played(protocol, row_showing("ABBCCCDD"), 1)
    answer = demonstration.response_ids[-demonstration.num_answer_tokens :]
    assert tokenizer.decode(answer) == 'A"}}\n</tool_call><|im_end|>'


def test_eight_explores_stay_near_a_hundred_tokens(protocol: Protocol) -> None:
    assert len(played(protocol, row_showing("ABBCCCDD"), 8).response_ids) == 8 * (4 + 8) + 6


def test_stops_are_late_as_a_rule_and_early_now_and_then() -> None:
    rng = random.Random(0)
    stops = Counter(StopConfig().draw(rng) for _ in range(10_000))
    assert sorted(stops) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert 0.08 < sum(stops[k] for k in (1, 2, 3, 4)) / 10_000 < 0.12
    assert max(stops[k] for k in (5, 6, 7, 8)) < 1.2 * min(stops[k] for k in (5, 6, 7, 8))


def test_more_explores_than_the_row_allows_are_refused(protocol: Protocol) -> None:
    (row,) = urn_rows(1)
    with pytest.raises(DataError, match="9 explores, max_explores=8"):
        played(protocol, row, 9)


def test_an_episode_that_does_not_fit_is_refused_and_never_trained_on(protocol: Protocol) -> None:
    with pytest.raises(DataError, match="max_response_length"):
        played(protocol, urn_rows(1)[0], 5, Limits(max_prompt_length=512, max_response_length=40))


@pytest.mark.parametrize("wrong", [{"late": (8, 5)}, {"early": (0, 3)}, {"early_share": 1.5}])
def test_an_impossible_stop_rule_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"stop.{next(iter(wrong))}"):
        StopConfig(**wrong)
