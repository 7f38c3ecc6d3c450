from decimal import Decimal

import pytest
from reward_episodes import CORRECT, NO_ANSWER, Table, episode, explore, shaped, submit, talk

from atlas_rl.errors import RewardError
from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.episode import Episode
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.rewards.batch_metrics import batch_metrics
from atlas_rl.rewards.config import Preset, RewardConfig
from atlas_rl.rewards.invariants import RowErrors
from atlas_rl.rewards.score import score

FINE = RowErrors(0.0, 0.0, 0)
CONFIG = RewardConfig(preset=Preset.CUSTOM, per_explore=Decimal("0.25"), per_dollar=Decimal(0))


def row(record: Episode, *phi: float) -> Breakdown:
    verdict = CORRECT if record.submit_executed else NO_ANSWER
    return score(record, verdict, config=shaped(CONFIG), potential=Table(phi or (0.0,) * 9)).breakdown


def test_every_figure_of_a_batch_is_over_the_rows_it_is_about() -> None:
    rows = [
        row(episode(explore(), explore(), submit()), 0.0, 0.5, 0.5),  # 0.25, -0.25 | 0.5
        row(episode(submit())),  # | 1.0
        row(episode(explore(), talk(), reason=TerminalReason.NO_CALL)),  # -0.25 | 0.0
    ]
    assert batch_metrics(rows, [FINE] * 3) == {
        "reward/mapping_sum_error_max": 0.0,
        "reward/decomposition_error_max": 0.0,
        "reward/mapped_slots_minus_events_max": 0.0,
        "protocol/violations_in_batch": 1.0,
        "protocol/infrastructure_errors_in_batch": 0.0,
        "process_reward/explore_negative_fraction": 2 / 3,
        "process_reward/first_explore_reward_mean": 0.0,
        "process_reward/later_explore_reward_mean": -0.25,
        "process_reward/terminal_reward_mean": 0.5,
        "process_reward/trajectory_sum_mean": 0.41666666666666669,
    }


def test_an_infrastructure_error_is_counted_and_stays_out_of_every_mean() -> None:
    good = row(episode(explore(), submit()))
    fault = row(episode(explore(), explore(), reason=TerminalReason.INFRASTRUCTURE_ERROR))
    with_fault = batch_metrics([fault, good, fault], [FINE] * 3)
    assert with_fault.pop("protocol/infrastructure_errors_in_batch") == 2.0
    alone = batch_metrics([good], [FINE])
    assert alone.pop("protocol/infrastructure_errors_in_batch") == 0.0
    assert with_fault == alone


def test_the_largest_invariant_by_size_is_shown_even_if_it_is_negative_or_on_a_faulty_row() -> None:
    fault = row(episode(talk(), reason=TerminalReason.INFRASTRUCTURE_ERROR))
    metrics = batch_metrics([fault] * 3, [RowErrors(0.0, 0.25, 1), RowErrors(0.5, 0.0, -2), FINE])
    assert metrics["reward/mapping_sum_error_max"] == 0.5
    assert metrics["reward/decomposition_error_max"] == 0.25
    assert metrics["reward/mapped_slots_minus_events_max"] == -2.0


def test_a_mean_over_nothing_has_no_key() -> None:
    assert sorted(batch_metrics([], [])) == [
        "protocol/infrastructure_errors_in_batch",
        "protocol/violations_in_batch",
        "reward/decomposition_error_max",
        "reward/mapped_slots_minus_events_max",
        "reward/mapping_sum_error_max",
    ]
    assert "process_reward/first_explore_reward_mean" not in batch_metrics([row(episode(submit()))], [FINE])


def test_rows_and_errors_must_pair_up() -> None:
    with pytest.raises(RewardError, match="1 breakdowns but 0 row errors"):
        batch_metrics([row(episode(submit()))], [])
