"""The tables of a replay: what changed, two rewards side by side, and both by partition and step."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

from atlas_rl.records.vocabulary import Partition, TerminalReason
from atlas_rl.reporting.manifest import write_atomically
from atlas_rl.reporting.replay import Amounts, ComparedRow, FieldChange, RowKey

CHANGED_FILE = "changed.csv"
COMPARISON_FILE = "comparison.csv"
SUMMARY_FILE = "summary.csv"

CHANGED_COLUMNS = (*RowKey._fields, "field", "stored", "new")
COMPARISON_COLUMNS = (
    *RowKey._fields,
    "benchmark",
    "subset",
    "terminal_reason",
    "acc",
    "num_explores",
    "cost_total",
    *(f"{side}_{name}" for name in Amounts._fields for side in ("old", "new")),
    "equal",
)
MEANS = ("objective", "final_reward", "training_reward", "utility")
"""Amounts that the summary averages."""


class StepSummary(NamedTuple):
    """One partition and step under two rewards."""

    partition: Partition
    step: int
    rows: int
    infrastructure_errors: int
    """Rows in no mean."""
    changed: int
    old: tuple[float | None, ...]
    """Mean of each of MEANS under the stored reward; None: no row."""
    new: tuple[float | None, ...]


SUMMARY_COLUMNS = (
    "partition",
    "step",
    "rows",
    "infrastructure_errors",
    "changed",
    *(f"{side}_{name}" for name in MEANS for side in ("old", "new")),
)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table whole; floats so that they read back to the same bits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    # A lone surrogate of a question travels as an escape: UTF-8 cannot spell it.
    write_atomically(path, text.getvalue().encode("utf-8", "backslashreplace"))


def changed_rows(changes: Iterable[FieldChange]) -> list[tuple[Any, ...]]:
    """The rows of changed.csv."""
    return [(*change.key, change.field, change.stored, change.new) for change in changes]


def comparison_rows(rows: Iterable[ComparedRow]) -> list[tuple[Any, ...]]:
    """The rows of comparison.csv."""
    return [
        (
            *row.key,
            row.benchmark,
            row.subset,
            row.terminal_reason,
            row.acc,
            row.num_explores,
            format(row.cost_total, "f"),
            *(value for pair in zip(row.old, row.new, strict=True) for value in pair),
            int(row.is_equal),
        )
        for row in rows
    ]


def summarise(rows: Iterable[ComparedRow]) -> list[StepSummary]:
    """Each partition and step: means over its rows that are no infrastructure error."""
    groups: dict[tuple[Partition, int], list[ComparedRow]] = defaultdict(list)
    for row in rows:
        groups[row.key.partition, row.key.step].append(row)
    summaries = []
    for (partition, step), group in sorted(groups.items()):
        sound = [row for row in group if row.terminal_reason is not TerminalReason.INFRASTRUCTURE_ERROR]
        summaries.append(
            StepSummary(
                partition=partition,
                step=step,
                rows=len(group),
                infrastructure_errors=len(group) - len(sound),
                changed=sum(not row.is_equal for row in group),
                old=tuple(_mean([getattr(row.old, name) for row in sound]) for name in MEANS),
                new=tuple(_mean([getattr(row.new, name) for row in sound]) for name in MEANS),
            )
        )
    return summaries


def summary_rows(summaries: Iterable[StepSummary]) -> list[tuple[Any, ...]]:
    """The rows of summary.csv; a mean over nothing is empty."""
    return [
        (
            *summary[:5],
            *("" if value is None else value for pair in zip(summary.old, summary.new, strict=True) for value in pair),
        )
        for summary in summaries
    ]


def _mean(values: Sequence[float]) -> float | None:
    return fsum(values) / len(values) if values else None
