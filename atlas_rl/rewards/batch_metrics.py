"""Figures of one training batch from its breakdowns; pure numbers, no tensors."""

from collections.abc import Iterable, Sequence
from math import fsum

from atlas_rl.errors import RewardError
from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.rewards.invariants import RowErrors


def batch_metrics(breakdowns: Sequence[Breakdown], errors: Sequence[RowErrors]) -> dict[str, float]:
    """Summarise a batch; docs/rewards.md explains each key.

    Rows that are an infrastructure error are counted and then left out of every other figure but the invariants. A
    mean over nothing has no key.

    Args:
        breakdowns: one a row, padding rows left out.
        errors: the invariants of the same rows.

    Raises:
        RewardError: the two differ in length.
    """
    if len(breakdowns) != len(errors):
        raise RewardError(f"{len(breakdowns)} breakdowns but {len(errors)} row errors; pass one of each per row")
    rows = [row for row in breakdowns if row.terminal_reason_code != TerminalReason.INFRASTRUCTURE_ERROR.code]
    explores = [_explore_rewards(row) for row in rows]
    all_explores = [reward for rewards in explores for reward in rewards]
    metrics = invariant_metrics(errors)
    metrics["protocol/violations_in_batch"] = float(sum(row.protocol_violations for row in rows))
    metrics["protocol/infrastructure_errors_in_batch"] = float(len(breakdowns) - len(rows))
    means = {
        "process_reward/explore_negative_fraction": _mean(float(reward < 0) for reward in all_explores),
        "process_reward/first_explore_reward_mean": _mean(rewards[0] for rewards in explores if rewards),
        "process_reward/later_explore_reward_mean": _mean(reward for rewards in explores for reward in rewards[1:]),
        "process_reward/terminal_reward_mean": _mean(row.terminal_reward for row in rows),
        "process_reward/trajectory_sum_mean": _mean(row.training_reward for row in rows),
    }
    metrics.update((name, mean) for name, mean in means.items() if mean is not None)
    return metrics


def invariant_metrics(errors: Sequence[RowErrors]) -> dict[str, float]:
    """Largest invariant of each kind, by size; each must be exactly 0, and a batch of no rows has nothing wrong."""
    return {
        "reward/mapping_sum_error_max": max((error.mapping_sum_error for error in errors), default=0.0),
        "reward/decomposition_error_max": max((error.decomposition_error for error in errors), default=0.0),
        "reward/mapped_slots_minus_events_max": float(
            max((error.mapped_slots_minus_events for error in errors), key=abs, default=0)
        ),
    }


def _explore_rewards(row: Breakdown) -> list[float]:
    return [float(getattr(row, f"explore_reward_{k}")) for k in range(1, row.num_explores + 1)]


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fsum(known) / len(known) if known else None
