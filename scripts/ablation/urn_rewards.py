"""The table of the rewards ablation: explores and utility by preset and potential, against the optimum.

Usage: python scripts/ablation/urn_rewards.py --val-file VAL.parquet artifacts/RUN...
Exits with 1 if an invariant is not exactly 0, or if a dearer explore is taken more often under the same potential.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas_rl.cli.summary import urn_bounds
from atlas_rl.errors import AtlasError, RecordError
from atlas_rl.reporting.manifest import read_manifest
from atlas_rl.reporting.metrics import read_metrics
from atlas_rl.reporting.summary import Estimate, summarise_run
from atlas_rl.rewards.config import RewardConfig

EXPLORES = "urn/overall/explores"
DOLLARS_AN_EXPLORE = 0.8
"""Of the demo's urns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRun:
    """One run, read back."""

    preset: str
    potential: str
    price: float
    """Of one explore, in units of accuracy."""
    steps: int
    worst_invariant: float
    explores: tuple[float, float]
    """Mean over the validation questions, before and after."""
    utility: tuple[Estimate, Estimate]
    fixed: float
    optimum: float


def read_run(run: Path, val_file: Path) -> RewardRun:
    """Read a run's figures from its records and metrics.

    Raises:
        RecordError: it has no validation before and after, or never logged an invariant.
    """
    config = read_manifest(run / "run.json").config
    reward = RewardConfig.from_mapping(config["atlas"]["reward"])
    summary = summarise_run(run)
    explores = [line[EXPLORES] for line in read_metrics(run / "metrics.jsonl").lines if EXPLORES in line]
    if len(summary.validations) < 2 or len(explores) < 2 or None in summary.invariant_max.values():
        raise RecordError(f"{run}: needs a validation before and after and every invariant; let the run finish")
    fixed, optimum = urn_bounds(val_file, reward)
    prices = reward.objective_prices
    return RewardRun(
        preset=str(reward.preset),
        potential="+".join(name for name, _ in reward.potentials) or "zero",
        price=float(prices.per_explore) + DOLLARS_AN_EXPLORE * float(prices.per_dollar),
        steps=summary.num_training_steps,
        worst_invariant=max(abs(value or 0.0) for value in summary.invariant_max.values()),
        explores=(explores[0], explores[-1]),
        utility=(summary.validations[0].utility, summary.validations[-1].utility),
        fixed=float(fixed),
        optimum=float(optimum),
    )


def broken_promises(runs: Sequence[RewardRun]) -> list[str]:
    """What a reader should not have to look for."""
    broken = [
        f"{one.preset}, {one.potential}: an invariant of {one.worst_invariant}" for one in runs if one.worst_invariant
    ]
    for potential in sorted({one.potential for one in runs}):
        same = sorted((one for one in runs if one.potential == potential), key=lambda one: one.price)
        for cheap, dear in itertools.pairwise(same):
            if dear.explores[1] > cheap.explores[1]:
                broken.append(
                    f"{potential}: {dear.explores[1]:.3f} explores at {dear.price:g} each, {cheap.explores[1]:.3f} at "
                    f"{cheap.price:g}"
                )
    return broken


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit status says whether the promises hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="artifacts/RUN")
    parser.add_argument("--val-file", required=True, type=Path, help="validation questions of the runs")
    given: Any = parser.parse_args(arguments)
    runs = [read_run(run, given.val_file) for run in given.runs]
    print("| preset | price of an explore | potential | explores | utility (standard error) | best fixed | optimum |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for one in runs:
        before, after = one.utility
        print(
            f"| {one.preset} | {one.price:.2f} | {one.potential} | {one.explores[0]:.2f} -> {one.explores[1]:.2f} "
            f"| {before.mean:.3f} -> {after.mean:.3f} ({after.standard_error or float('nan'):.3f}) "
            f"| {one.fixed:.3f} | {one.optimum:.3f} |"
        )
    broken = broken_promises(runs)
    for line in broken:
        print(f"broken: {line}")
    worst = max(one.worst_invariant for one in runs)
    print(
        f"urn_rewards: runs={len(runs)} steps={min(one.steps for one in runs)} invariant={worst:g} broken={len(broken)}"
    )
    return int(bool(broken))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AtlasError as error:
        sys.exit(f"{type(error).__name__}: {error}")
