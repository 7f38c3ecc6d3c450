from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from reward_episodes import CORRECT, NO_ANSWER, Table, Turn, episode, explore, shaped, submit, talk

from atlas_rl.records.episode import Episode
from atlas_rl.records.trajectory import PlacedReward
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.rewards.config import Preset, ProcessMode, RewardConfig
from atlas_rl.rewards.invariants import RowErrors, mapped_slots_minus_events, mapping_sum_error, row_errors
from atlas_rl.rewards.placement import place, token_rewards
from atlas_rl.rewards.score import score

NOTHING_WRONG = RowErrors(mapping_sum_error=0.0, decomposition_error=0.0, mapped_slots_minus_events=0)
PHI = Table((0.1, 0.7, 0.3, 0.9, 0.2, 0.6, 0.4, 0.8, 0.5))
CONFIG = shaped(RewardConfig(preset=Preset.BOTH))
Trace = list[PlacedReward]


def told() -> Episode:
    #               0 1 2 | 3 4 | 5 6 7 | 8 9 | 10 11 12
    return episode(explore(cost="0.1"), explore(cost="0.2"), submit())


def errors_of(trace: Trace, record: Episode) -> tuple[float, int]:
    breakdown = score(record, CORRECT, config=CONFIG, potential=PHI).breakdown
    rewards = token_rewards(trace, record.response_tokens + 1)
    return mapping_sum_error(rewards, breakdown, record), mapped_slots_minus_events(trace, record)


def good_trace() -> Trace:
    return list(place(score(told(), CORRECT, config=CONFIG, potential=PHI)))


def slide(trace: Trace, index: int, by: int) -> Trace:
    moved = trace[index].model_copy(update={"offset": trace[index].offset + by})
    return [*trace[:index], moved, *trace[index + 1 :]]


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ((submit(),), TerminalReason.SUBMITTED),
        ((*[explore(cost="0.013")] * 8, submit(1)), TerminalReason.SUBMITTED),
        ((explore(cost="0.1", shows=0),), TerminalReason.EXPLORE_OBSERVATION_DROPPED),
        ((explore(), explore(cost="3.3", shows=0)), TerminalReason.EXPLORE_OBSERVATION_DROPPED),
        ((explore(), explore()), TerminalReason.MAX_TURNS),
        ((explore(), talk()), TerminalReason.LENGTH),
        ((talk(1),), TerminalReason.INVALID_CALL),
        ((), TerminalReason.BUDGET_EXHAUSTED),
        ((explore(), talk()), TerminalReason.INFRASTRUCTURE_ERROR),
    ],
)
@pytest.mark.parametrize("mode", list(ProcessMode))
def test_every_way_to_end_leaves_all_invariants_at_exactly_zero(
    turns: tuple[Turn, ...], reason: TerminalReason, mode: ProcessMode
) -> None:
    record = episode(*turns, reason=reason)
    config = RewardConfig(preset=Preset.BOTH, format_score=Decimal("0.1"), process_mode=mode)
    verdict = CORRECT if record.submit_executed else NO_ANSWER
    assert row_errors(score(record, verdict, config=config), record) == NOTHING_WRONG
    if mode is ProcessMode.POTENTIAL:
        assert row_errors(score(record, verdict, config=shaped(config), potential=PHI), record) == NOTHING_WRONG


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("by", [-1, 1])
def test_an_off_by_one_placement_shows_in_both_invariants(index: int, by: int) -> None:
    sum_error, slots_minus_events = errors_of(slide(good_trace(), index, by), told())
    assert sum_error == pytest.approx(2 * abs(good_trace()[index].value))
    assert slots_minus_events == -1


def test_an_off_by_one_of_every_placement_shows_though_the_sum_is_right() -> None:
    trace = good_trace()
    for index in range(3):
        trace = slide(trace, index, 1)
    sum_error, slots_minus_events = errors_of(trace, told())
    assert sum_error > 1
    assert slots_minus_events == -3


def test_an_off_by_one_in_the_recorded_action_shows_too() -> None:
    good = told()
    early = good.events[0].model_copy(update={"action_end_offset": good.events[0].action_end_offset - 1})
    record = good.model_copy(update={"events": (early, *good.events[1:])})
    errors = row_errors(score(record, CORRECT, config=RewardConfig()), record)
    assert errors.mapping_sum_error == pytest.approx(0.02)
    assert errors.mapped_slots_minus_events == -1


@pytest.mark.parametrize(
    ("damage", "sum_error", "slots_minus_events"),
    [
        pytest.param(lambda trace: trace[1:], 0.57, -1, id="a dropped slot"),
        pytest.param(lambda trace: slide(trace, 0, 1), 2 * 0.57, -1, id="a reward on an observation"),
        pytest.param(lambda trace: [*trace, PlacedReward(offset=6, value=0.25)], 0.25, 1, id="one slot too many"),
        pytest.param(lambda trace: [*trace, PlacedReward(offset=6, value=0.0)], 0.0, 1, id="an empty slot too many"),
        pytest.param(lambda trace: [], 0.57 + 0.44 + 0.7, -3, id="no slot at all"),
        pytest.param(
            lambda trace: [slide(trace, 0, 5)[0], slide(trace, 1, -5)[1], trace[2]],
            2 * (0.57 + 0.44), 0, id="two rewards swapped",
        ),
    ],
)  # fmt: skip
def test_damage_to_the_placement_shows(
    damage: Callable[[Trace], Trace], sum_error: float, slots_minus_events: int
) -> None:
    #  explores earn -0.03 + 0.6 = 0.57 and -0.04 - 0.4 = -0.44, the submit 1 - 0.3 = 0.7
    found = errors_of(damage(good_trace()), told())
    assert found[0] == pytest.approx(sum_error)
    assert found[1] == slots_minus_events


def test_a_last_bit_is_enough_to_show() -> None:
    trace = good_trace()
    trace[2] = trace[2].model_copy(update={"value": trace[2].value + 2**-24})
    assert errors_of(trace, told()) == (2**-24, 0)


def test_a_reward_that_is_no_number_shows_as_infinite() -> None:
    rewards: list[Any] = token_rewards(good_trace(), 13)
    rewards[0] = float("nan")
    breakdown = score(told(), CORRECT, config=CONFIG, potential=PHI).breakdown
    assert mapping_sum_error(rewards, breakdown, told()) == float("inf")


def test_rewards_cut_short_show() -> None:
    rewards = token_rewards(good_trace(), 13)[:-1]
    breakdown = score(told(), CORRECT, config=CONFIG, potential=PHI).breakdown
    assert mapping_sum_error(rewards, breakdown, told()) == pytest.approx(0.7)


def test_a_reward_on_an_infrastructure_error_shows() -> None:
    fault = episode(explore(), reason=TerminalReason.INFRASTRUCTURE_ERROR)
    breakdown = score(fault, NO_ANSWER, config=RewardConfig()).breakdown
    trace = [PlacedReward(offset=2, value=0.5)]
    assert mapping_sum_error(token_rewards(trace, 5), breakdown, fault) == 0.5
    assert mapped_slots_minus_events(trace, fault) == 1
