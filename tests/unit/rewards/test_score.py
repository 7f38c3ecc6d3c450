from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from reward_episodes import CORRECT, NO_ANSWER, WRONG, Table, episode, explore, grade, shaped, submit, talk

from atlas_rl.errors import RewardError
from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.episode import Episode
from atlas_rl.records.vocabulary import CUT_BY_LENGTH_CAP, TerminalReason, Verdict
from atlas_rl.rewards.config import Preset, ProcessMode, RewardConfig
from atlas_rl.rewards.potentials import ZERO
from atlas_rl.rewards.score import Slot, score

PER_EXPLORE = RewardConfig()
PER_DOLLAR = RewardConfig(preset=Preset.DOLLAR_0_1)
BOTH = RewardConfig(preset=Preset.BOTH)


def explore_rewards(breakdown: Breakdown) -> list[float]:
    return [getattr(breakdown, f"explore_reward_{k}") for k in range(1, 9)]


def values(breakdown: Breakdown, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(breakdown, name) for name in names)


def test_each_action_earns_its_own_cost_and_the_submit_earns_the_answer() -> None:
    two_explores = episode(explore(cost="0.5"), explore(cost="2"), submit())
    scored = score(two_explores, CORRECT, config=BOTH, subset="hard")
    #                   tokens  0 1 2 | 3 4 | 5 6 7 | 8 9 | 10 11 12
    assert scored.slots == (
        Slot(0, 2, Fraction(-7, 100)),
        Slot(1, 7, Fraction(-22, 100)),
        Slot(2, 12, Fraction(1)),
    )
    row = scored.breakdown
    assert explore_rewards(row) == [-0.07, -0.22, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert values(row, "acc", "penalty", "objective", "final_reward", "training_reward", "utility") == (
        1.0, 0.29, 0.71, 0.71, 0.71, 0.71,
    )  # fmt: skip
    assert values(row, "terminal_reward", "num_explores", "cost", "cost_total", "subset") == (
        1.0, 2, Decimal("2.5"), Decimal("2.5"), "hard",
    )  # fmt: skip
    assert scored.decomposition_error == 0.0


def test_money_is_exact_where_floats_are_not() -> None:
    dime = episode(*[explore(cost="0.1")] * 3, submit())
    row = score(dime, CORRECT, config=PER_DOLLAR).breakdown
    assert row.cost_total == Decimal("0.3")
    assert (row.objective, row.training_reward) == (0.97, 0.97)


def test_a_cost_is_never_rounded_by_the_decimal_context() -> None:
    fine = "0.00000000000000000000000000000000000001"
    long_sum = episode(explore(cost="1000000"), explore(cost=fine), submit())
    assert score(long_sum, WRONG, config=PER_DOLLAR).breakdown.cost_total == Decimal("1000000" + fine[1:])


def test_a_cost_with_too_many_digits_is_refused_and_not_rounded() -> None:
    with pytest.raises(RewardError, match="more than 60 digits"):
        score(episode(explore(cost="1E+40"), explore(cost="1E-40"), submit()), WRONG, config=PER_DOLLAR)


def test_shaping_telescopes_to_the_objective_minus_the_start_potential() -> None:
    phi = Table((0.5, 0.75, 0.25))
    scored = score(episode(explore(), explore(), submit()), CORRECT, config=shaped(PER_EXPLORE), potential=phi)
    #                                        -0.01 + 0.25       -0.01 - 0.5        1 - 0.25
    assert [slot.exact for slot in scored.slots] == [Fraction(24, 100), Fraction(-51, 100), Fraction(75, 100)]
    row = scored.breakdown
    assert values(row, "objective", "final_reward", "training_reward", "potential_stop", "potential_defined") == (
        0.98, 0.98, 0.48, 0.25, True,
    )  # fmt: skip
    assert scored.decomposition_error == 0.0


def test_a_submit_without_any_explore_is_shaped_by_the_start_potential() -> None:
    scored = score(episode(submit()), WRONG, config=shaped(PER_EXPLORE), potential=Table((0.5,)))
    assert [slot.exact for slot in scored.slots] == [Fraction(-1, 2)]
    assert values(scored.breakdown, "final_reward", "training_reward") == (0.0, -0.5)


def test_terminal_mode_puts_everything_on_the_submit() -> None:
    config = RewardConfig(process_mode=ProcessMode.TERMINAL)
    scored = score(episode(explore(), explore(), submit()), CORRECT, config=config)
    assert [float(slot.exact) for slot in scored.slots] == [0.0, 0.0, 0.98]
    row = scored.breakdown
    assert values(row, "training_reward", "process_mode_code", "potential_defined") == (0.98, 0, False)
    assert scored.decomposition_error == 0.0


@pytest.mark.parametrize(
    ("turns", "reason", "offset"),
    [
        #  0 1 2 | 3 4 | 5 6 7 8
        ((explore(), talk(4)), TerminalReason.LENGTH, 8),
        #  0 1 2
        ((explore(shows=0),), TerminalReason.EXPLORE_OBSERVATION_DROPPED, 2),
        #  0 1 2 | 3 4
        ((explore(),), TerminalReason.BUDGET_EXHAUSTED, 2),
        ((explore(),), TerminalReason.MAX_TURNS, 2),
        ((talk(2),), TerminalReason.NO_CALL, 1),
    ],
)
def test_without_a_submit_the_terminal_reward_goes_to_the_last_sampled_token(
    turns: tuple[Any, ...], reason: TerminalReason, offset: int
) -> None:
    scored = score(episode(*turns, reason=reason), NO_ANSWER, config=shaped(PER_EXPLORE), potential=Table((0.0, 0.5)))
    assert (scored.slots[-1].event_index, scored.slots[-1].offset) == (None, offset)
    assert scored.decomposition_error == 0.0


@pytest.mark.parametrize("reason", list(TerminalReason))
def test_length_capped_is_true_exactly_for_the_endings_that_the_budget_forces(reason: TerminalReason) -> None:
    row = score(episode(talk(), reason=reason), NO_ANSWER, config=PER_EXPLORE).breakdown
    assert row.length_capped == (reason in CUT_BY_LENGTH_CAP)
    assert row.terminal_reason_code == reason.code
    assert row.invalid_call == (reason is TerminalReason.INVALID_CALL)
    assert row.observation_dropped == reason.endswith("observation_dropped")


def test_a_dropped_observation_is_charged_but_not_seen() -> None:
    dropped = episode(
        explore(cost="1"), explore(cost="2", shows=0, right=True), reason=TerminalReason.EXPLORE_OBSERVATION_DROPPED
    )
    row = score(dropped, NO_ANSWER, config=PER_DOLLAR).breakdown
    assert values(row, "cost", "cost_total", "penalty", "num_explores") == (Decimal(1), Decimal(3), 0.3, 2)
    assert values(row, "discovery", "found_correct", "first_correct_k") == (False, False, 0)


@pytest.mark.parametrize(
    ("turns", "verdict", "expected"),
    [
        #                                                          found  first_k  after  integration
        ((explore(), explore(right=True), submit()), CORRECT, (True, 2, True, True)),
        ((explore(right=True), explore(right=True), submit()), WRONG, (True, 1, True, False)),
        ((explore(), submit()), CORRECT, (False, 0, False, False)),
        ((explore(right=True),), NO_ANSWER, (True, 1, False, False)),
    ],
)
def test_discovery_and_integration_read_the_revealed_labels(
    turns: tuple[Any, ...], verdict: Any, expected: tuple[Any, ...]
) -> None:
    reason = TerminalReason.MAX_TURNS if verdict is NO_ANSWER else TerminalReason.SUBMITTED
    row = score(episode(*turns, reason=reason), verdict, config=PER_EXPLORE).breakdown
    assert values(row, "found_correct", "first_correct_k", "submitted_after_correct", "integration") == expected
    assert row.discovery == row.found_correct


@pytest.mark.parametrize(
    ("shown", "right", "shows", "verdict", "gap"),
    [
        (" 42 ", True, 2, WRONG, True),
        ("42", False, 2, CORRECT, True),
        ("42", True, 2, CORRECT, False),
        ("41", True, 2, WRONG, False),
        ("42", True, 0, WRONG, False),
        ("42", True, 2, grade(Verdict.TIMEOUT), False),
        ("42", True, 2, grade(Verdict.UNJUDGED), False),
    ],
)
def test_a_grader_gap_needs_the_same_answer_a_revealed_label_and_a_verdict_that_disagrees(
    shown: str, right: bool, shows: int, verdict: Any, gap: bool
) -> None:
    row = score(
        episode(explore(answer=shown, right=right, shows=shows), submit(answer="42\n")), verdict, config=PER_EXPLORE
    ).breakdown
    assert row.grader_gap is gap


def test_text_that_a_tool_revealed_earns_nothing() -> None:
    told = episode(explore(answer="42", right=True), submit(answer="7"))
    assert score(told, WRONG, config=PER_EXPLORE).breakdown.acc == 0.0


@pytest.mark.parametrize("verdict", [Verdict.TIMEOUT, Verdict.UNJUDGED, Verdict.WRONG, Verdict.NO_ANSWER])
def test_only_a_correct_verdict_counts(verdict: Verdict) -> None:
    assert score(episode(submit()), grade(verdict), config=PER_EXPLORE).breakdown.acc == 0.0


@pytest.mark.parametrize(("answer", "has_answer", "final_reward"), [("A", True, 0.25), ("", False, 0.0)])
def test_the_format_score_is_for_a_submit_that_says_something(
    answer: str, has_answer: bool, final_reward: float
) -> None:
    scored = score(episode(submit(answer=answer)), WRONG, config=RewardConfig(format_score=Decimal("0.25")))
    row = scored.breakdown
    assert values(row, "did_submit", "has_answer", "format_score", "final_reward", "objective") == (
        True, has_answer, final_reward, final_reward, 0.0,
    )  # fmt: skip
    assert scored.decomposition_error == 0.0


@pytest.mark.parametrize(("limit", "overlong"), [(8, True), (9, False), (None, False)])
def test_overlong_counts_response_tokens_from_the_limit_on(limit: int | None, overlong: bool) -> None:
    config = RewardConfig(overlong_from_tokens=limit, overlong_penalty=Decimal("0.5") if limit else Decimal(0))
    scored = score(episode(explore(), submit()), CORRECT, config=config)
    row = scored.breakdown
    assert row.response_tokens == 8
    assert (row.overlong, row.overlong_penalty) == (overlong, 0.5 if overlong else 0.0)
    assert (row.objective, row.final_reward) == (0.99, 0.49 if overlong else 0.99)
    assert row.utility == 0.99
    assert scored.decomposition_error == 0.0


def test_utility_has_its_own_prices() -> None:
    config = RewardConfig(utility_per_explore=Decimal(0), utility_per_dollar=Decimal("0.5"))
    row = score(episode(explore(cost="1"), submit()), CORRECT, config=config).breakdown
    assert (row.objective, row.utility) == (0.99, 0.5)


def test_an_infrastructure_error_has_facts_but_no_reward() -> None:
    fault = episode(explore(cost="2", right=True), talk(), reason=TerminalReason.INFRASTRUCTURE_ERROR, error="engine")
    config = RewardConfig(preset=Preset.BOTH, overlong_from_tokens=1, overlong_penalty=Decimal(1))
    scored = score(fault, NO_ANSWER, config=shaped(config), potential=Table((0.5, 0.5)))
    row = scored.breakdown
    assert scored.slots == ()
    assert scored.decomposition_error == 0.0
    assert values(row, "objective", "final_reward", "training_reward", "utility", "penalty", "terminal_reward") == (
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
    )  # fmt: skip
    assert explore_rewards(row) == [0.0] * 8
    assert values(row, "num_explores", "cost_total", "found_correct", "potential_defined") == (
        1, Decimal(2), True, False,
    )  # fmt: skip


def test_a_row_without_sampled_tokens_has_no_slot_and_no_reward() -> None:
    empty = episode(reason=TerminalReason.BUDGET_EXHAUSTED)
    config = RewardConfig(overlong_from_tokens=1, overlong_penalty=Decimal(1))
    scored = score(empty, NO_ANSWER, config=shaped(config), potential=Table((0.5,)))
    assert scored.slots == ()
    assert values(scored.breakdown, "final_reward", "training_reward") == (0.0, 0.0)
    assert scored.decomposition_error == 0.0


def test_a_revealed_prefix_that_skips_a_candidate_breaks_the_decomposition() -> None:
    good = episode(explore(), explore(), submit())
    skipping = good.events[1].model_copy(update={"prefix_before": 0})
    broken = good.model_copy(update={"events": (good.events[0], skipping, good.events[2])})
    config, phi = shaped(), Table((0.0, 0.5, 0.75))
    assert score(good, CORRECT, config=config, potential=phi).decomposition_error == 0.0
    assert score(broken, CORRECT, config=config, potential=phi).decomposition_error == 0.5


def test_the_same_record_gives_the_same_bits() -> None:
    lived = episode(explore(cost="0.000123"), explore(cost="0.07"), submit())
    stored = Episode.model_validate_json(lived.model_dump_json())
    config, phi = shaped(BOTH), Table((0.1, 0.2, 0.3))
    first, again = (score(record, CORRECT, config=config, potential=phi) for record in (lived, stored))
    assert first == again
    assert first.breakdown.model_dump_json() == again.breakdown.model_dump_json()


def _without_label() -> Episode:
    good = episode(explore(), submit())
    return good.model_copy(update={"events": (good.events[0].model_copy(update={"payload": {}}), good.events[1])})


@pytest.mark.parametrize(
    ("record", "verdict", "named"),
    [
        (episode(talk(), reason=TerminalReason.LENGTH), CORRECT, "graded correct without a submit"),
        (episode(submit(), submit()), WRONG, "a submit ends an episode"),
        (episode(submit(), explore()), WRONG, "a submit ends an episode"),
        (episode(*[explore()] * 9, submit()), WRONG, "9 explores, a breakdown names 8"),
        (episode(submit(), terminal_offset=1), WRONG, "belongs on token 2, but terminal_offset=1"),
        (_without_label(), WRONG, "payload of event 0 (explore) has is_correct=None"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(record: Episode, verdict: Any, named: str) -> None:
    with pytest.raises(RewardError) as caught:
        score(record, verdict, config=PER_EXPLORE)
    assert named in str(caught.value)
    assert "u1_0" in str(caught.value)


@pytest.mark.parametrize("config", [shaped(), PER_EXPLORE])
def test_a_potential_that_the_config_does_not_name_is_refused_and_so_is_a_missing_one(config: RewardConfig) -> None:
    potential = ZERO if config.potentials else Table((0.0,))
    with pytest.raises(RewardError, match=r"pass potentials\.compose\(config\.potentials, \.\.\.\)"):
        score(episode(submit()), CORRECT, config=config, potential=potential)
