"""The notes of several runs side by side: mean and range over the runs of a mode, by step."""

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from atlas_rl.errors import RecordError
from atlas_rl.records.vocabulary import Partition
from atlas_rl.reporting.manifest import Manifest, write_atomically
from atlas_rl.reporting.notes import NotesAtStep

COLUMNS = tuple(name for name in NotesAtStep.model_fields if name not in ("partition", "step"))
"""The figures of a step."""

_SHOWN = {
    "wrong_notes": "wrong notes an episode",
    "wrong_share": "of all notes",
    "note_nats": "nats a note",
    "policy_entropy": "policy entropy",
    "ppo_kl": "ppo_kl",
    "utility": "utility",
    "explores": "explores",
}
"""Columns of the printed tables and their heads; the CSV files have all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotesRun:
    """One run as read."""

    mode: str
    seed: int
    run_id: str
    steps: tuple[NotesAtStep, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """One figure over the runs of a mode."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedStep:
    """One step, or one validation, of all runs of a mode."""

    mode: str
    partition: Partition
    step: int
    num_runs: int
    """Runs that have it."""
    figures: dict[str, Spread | None]
    """By column of COLUMNS; None where a run lacks the figure."""


def mode_and_seed(manifest: Manifest) -> tuple[str, int]:
    """Which mode of log-probabilities a run used, and its seed.

    Raises:
        RecordError: its configuration does not say.
    """
    try:
        atlas = manifest.config["atlas"]
        policy, seed = atlas["policy"], int(atlas["run"]["seed"])
        mode = str(policy["logprobs"])
        is_forced_left_out = mode == "full_vocab" and not policy["train_forced_tokens"]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"run {manifest.run_id}: its configuration lacks {error}; only runs with atlas.policy.logprobs, "
            "train_forced_tokens and atlas.run.seed can be compared"
        ) from error
    return (f"{mode} without forced tokens" if is_forced_left_out else mode), seed


def merge(runs: Sequence[NotesRun]) -> list[MergedStep]:
    """Mean and range of every figure by mode, partition and step; modes in the order in which they first come.

    Raises:
        RecordError: two runs have the same mode and seed.
    """
    seen: dict[tuple[str, int], str] = {}
    steps: dict[tuple[str, Partition, int], list[NotesAtStep]] = defaultdict(list)
    for run in runs:
        if (run.mode, run.seed) in seen:
            both = f"{seen[run.mode, run.seed]} and {run.run_id}"
            raise RecordError(f"runs {both} are both {run.mode}, seed {run.seed}; give one of them")
        seen[run.mode, run.seed] = run.run_id
        for step in run.steps:
            steps[run.mode, step.partition, step.step].append(step)
    modes = list(dict.fromkeys(run.mode for run in runs))
    order = sorted(steps, key=lambda place: (place[1] is Partition.VAL, modes.index(place[0]), place[2]))
    return [
        MergedStep(
            mode=mode,
            partition=partition,
            step=step,
            num_runs=len(steps[mode, partition, step]),
            figures={name: _spread([getattr(one, name) for one in steps[mode, partition, step]]) for name in COLUMNS},
        )
        for mode, partition, step in order
    ]


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return Spread(mean=fmean(known), low=min(known), high=max(known))


def markdown(merged: Sequence[MergedStep], partition: Partition) -> list[str]:
    """The lines of one table, a row a step: mean (lowest to highest) over the runs of a mode, ``-`` where unknown."""
    heads = ["mode", "step", "runs", *_SHOWN.values()]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for one in merged:
        if one.partition is partition:
            figures = [_shown(one.figures[name]) for name in _SHOWN]
            lines.append(_row([one.mode, str(one.step), str(one.num_runs), *figures]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.mean:.4g} ({spread.low:.3g} to {spread.high:.3g})"


def write_csv(folder: Path, runs: Sequence[NotesRun], merged: Sequence[MergedStep]) -> tuple[Path, Path]:
    """Write FOLDER/notes_by_run.csv, a row a run and step, and FOLDER/notes_by_mode.csv, a row a mode and step.

    A figure of the second is three columns: NAME, NAME_min and NAME_max. An unknown one is empty.
    """
    by_run: list[list[Any]] = [["mode", "seed", "run", "partition", "step", *COLUMNS]]
    for run in runs:
        for step in run.steps:
            figures = [getattr(step, name) for name in COLUMNS]
            by_run.append([run.mode, run.seed, run.run_id, step.partition, step.step, *figures])
    heads = [head for name in COLUMNS for head in (name, f"{name}_min", f"{name}_max")]
    by_mode: list[list[Any]] = [["mode", "partition", "step", "runs", *heads]]
    for one in merged:
        spreads = [one.figures[name] for name in COLUMNS]
        values = [value for spread in spreads for value in _three(spread)]
        by_mode.append([one.mode, one.partition, one.step, one.num_runs, *values])
    return _write(folder / "notes_by_run.csv", by_run), _write(folder / "notes_by_mode.csv", by_mode)


def _three(spread: Spread | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if spread is None else (spread.mean, spread.low, spread.high)


def _write(path: Path, rows: Sequence[Sequence[Any]]) -> Path:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_atomically(path, text.getvalue().encode())
    return path
