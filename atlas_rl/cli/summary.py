"""The last line of a run: its promises and its utility, read back from the records."""

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.trajectory import TrajectoryHeader
from atlas_rl.reporting.manifest import read_manifest
from atlas_rl.reporting.summary import Estimate, RunSummary, summarise_run
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.invariants import RowErrors, mapped_slots_minus_events, mapping_sum_error
from atlas_rl.rewards.placement import token_rewards
from atlas_rl.rewards.potential_sources import potential_of
from atlas_rl.rewards.potentials import Potential
from atlas_rl.rewards.recorded_potential import of_record
from atlas_rl.rewards.score import score

_LOGGED = {
    "mapping_error": "reward/mapping_sum_error_max",
    "decomposition_error": "reward/decomposition_error_max",
    "slots_error": "reward/mapped_slots_minus_events_max",
}


def print_summary(run: Path, *, val_file: Path | None, label: str, seconds: float | None) -> bool:
    """Print a run's validations and its last line; return whether every promise holds."""
    summary = summarise_run(run)
    manifest = read_manifest(run / "run.json")
    atlas = manifest.config["atlas"]
    reward, potential = RewardConfig.from_mapping(atlas["reward"]), potential_of(atlas, manifest.working_directory)
    for line in summary.torn:
        print(f"torn: {line}")
    for validation in summary.validations:
        print(
            f"validation at step {validation.step}: utility {_with_error(validation.utility)}, "
            f"{validation.utility.count} episodes, {validation.infrastructure_errors} infrastructure errors"
        )
    if summary.utility_gain is not None:
        print(f"utility gain, paired by question: {_with_error(summary.utility_gain)}")
    rows = (row.decode() for row in TrajectoryStore(run).headers())
    zeros = _zeros(summary, recomputed_errors(rows, reward, potential))
    parts = [f"steps={summary.num_training_steps}", f"episodes={summary.num_training_episodes}"]
    parts += [f"{name}={value:g}" if value is not None else f"{name}=unknown" for name, value in zeros.items()]
    by_step = {validation.step: validation.utility.mean for validation in summary.validations}
    if by_step:
        parts.append(f"utility_before={by_step[0]:.4f}" if 0 in by_step else "utility_before=unknown")
        parts.append(f"utility_after={by_step[max(by_step)]:.4f}")
    if val_file is not None:
        fixed, optimum = urn_bounds(val_file, reward)
        parts += [f"fixed={float(fixed):.4f}", f"optimum={float(optimum):.4f}"]
    if seconds is not None:
        parts.append(f"seconds={seconds:.0f}")
    print(f"{label}: {' '.join(parts)}")
    return all(value == 0 for value in zeros.values())


def recomputed_errors(store: Iterable[TrajectoryHeader], reward: RewardConfig, potential: Potential) -> RowErrors:
    """The largest invariant of each kind over stored rows: scored again, against the rewards that were placed.

    A breakdown that differs from the stored one counts as a decomposition error of at least 1.
    """
    worst = RowErrors(0.0, 0.0, 0)
    for row in store:
        scored = score(
            row.episode, row.grade, config=reward, potential=of_record(potential, row.extra), subset=row.reward.subset
        )
        placed = token_rewards(row.reward_trace, row.episode.response_tokens)
        worst = RowErrors(
            max(worst.mapping_sum_error, mapping_sum_error(placed, scored.breakdown, row.episode)),
            max(worst.decomposition_error, scored.decomposition_error, float(scored.breakdown != row.reward)),
            max(worst.mapped_slots_minus_events, mapped_slots_minus_events(row.reward_trace, row.episode), key=abs),
        )
    return worst


def _zeros(summary: RunSummary, recomputed: RowErrors) -> dict[str, float | None]:
    """Each promise's worst figure, of what the trainer logged and what the records give; None if never logged."""
    zeros: dict[str, float | None] = {"violations": summary.protocol_violations}
    for (name, metric), again in zip(_LOGGED.items(), recomputed, strict=True):
        logged = summary.invariant_max.get(metric)
        if logged is None and not summary.num_training_steps:
            logged = 0.0  # nothing was trained, so nothing was logged: the records decide
        zeros[name] = None if logged is None else max(logged, float(again), key=abs)
    return zeros


def urn_bounds(val_file: Path, reward: RewardConfig) -> tuple[Fraction, Fraction]:
    """Expected utility of the best fixed number of explores and of the optimal policy, over the file's questions."""
    from atlas_rl.data.parquet import read_rows
    from atlas_rl.tasks.urn import urn_of
    from atlas_rl.tasks.urn_values import best_fixed, mean_value, optimal_value

    prices = reward.utility_prices
    urns = [urn_of(row, per_dollar=prices.per_dollar, per_explore=prices.per_explore) for row in read_rows(val_file)]
    return best_fixed(urns).value, mean_value([optimal_value(urn) for urn in urns])


def _with_error(estimate: Estimate) -> str:
    error = "unknown" if estimate.standard_error is None else f"{estimate.standard_error:.4f}"
    return f"{estimate.mean:.4f} (standard error {error})"
