"""The last line of a run: its promises and its utility, read back from the records."""

from fractions import Fraction
from pathlib import Path

from atlas_rl.reporting.manifest import read_manifest
from atlas_rl.reporting.summary import Estimate, summarise_run
from atlas_rl.rewards.config import RewardConfig

_ZEROS = {
    "violations": "protocol/violations_in_batch",
    "mapping_error": "reward/mapping_sum_error_max",
    "decomposition_error": "reward/decomposition_error_max",
    "slots_error": "reward/mapped_slots_minus_events_max",
}


def print_summary(run: Path, *, val_file: Path | None, label: str, seconds: float | None) -> bool:
    """Print a run's validations and its last line; return whether every promise holds."""
    summary = summarise_run(run)
    for line in summary.torn:
        print(f"torn: {line}")
    for validation in summary.validations:
        print(
            f"validation at step {validation.step}: utility {_with_error(validation.utility)}, "
            f"{validation.utility.count} episodes, {validation.infrastructure_errors} infrastructure errors"
        )
    if summary.utility_gain is not None:
        print(f"utility gain, paired by question: {_with_error(summary.utility_gain)}")
    zeros: dict[str, float | None] = {name: summary.invariant_max.get(metric) for name, metric in _ZEROS.items()}
    zeros["violations"] = summary.protocol_violations
    parts = [f"steps={summary.num_training_steps}", f"episodes={summary.num_training_episodes}"]
    parts += [f"{name}={value:g}" if value is not None else f"{name}=unknown" for name, value in zeros.items()]
    if summary.validations:
        parts.append(f"utility_before={summary.validations[0].utility.mean:.4f}")
        parts.append(f"utility_after={summary.validations[-1].utility.mean:.4f}")
    if val_file is not None:
        fixed, optimum = urn_bounds(val_file, RewardConfig.from_mapping(_reward_of(run)))
        parts += [f"fixed={float(fixed):.4f}", f"optimum={float(optimum):.4f}"]
    if seconds is not None:
        parts.append(f"seconds={seconds:.0f}")
    print(f"{label}: {' '.join(parts)}")
    return all(value == 0 for value in zeros.values())


def urn_bounds(val_file: Path, reward: RewardConfig) -> tuple[Fraction, Fraction]:
    """Expected utility of the best fixed number of explores and of the optimal policy, over the file's questions."""
    from atlas_rl.data.parquet import read_rows
    from atlas_rl.tasks.urn import urn_of
    from atlas_rl.tasks.urn_values import best_fixed, mean_value, optimal_value

    prices = reward.utility_prices
    urns = [urn_of(row, per_dollar=prices.per_dollar, per_explore=prices.per_explore) for row in read_rows(val_file)]
    return best_fixed(urns).value, mean_value([optimal_value(urn) for urn in urns])


def _reward_of(run: Path) -> dict[str, object]:
    config = read_manifest(run / "run.json").config
    reward: dict[str, object] = config["atlas"]["reward"]
    return reward


def _with_error(estimate: Estimate) -> str:
    error = "unknown" if estimate.standard_error is None else f"{estimate.standard_error:.4f}"
    return f"{estimate.mean:.4f} (standard error {error})"
