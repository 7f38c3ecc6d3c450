"""What ``atlas-rl replay`` prints and writes."""

from collections.abc import Sequence
from itertools import groupby, islice
from pathlib import Path

from atlas_rl.cli.replay_grading import VERDICT_COLUMNS, Regraded
from atlas_rl.reporting.replay import ComparedRow, FieldChange, RowKey
from atlas_rl.reporting.replay_tables import (
    CHANGED_COLUMNS,
    CHANGED_FILE,
    COMPARISON_COLUMNS,
    COMPARISON_FILE,
    MEANS,
    SUMMARY_COLUMNS,
    SUMMARY_FILE,
    changed_rows,
    comparison_rows,
    summarise,
    summary_rows,
    write_csv,
)

SHOWN = 3
"""Changed rows that are printed field by field, and moved verdicts."""
VERDICTS_FILE = "verdicts.csv"


def report_changes(changes: Sequence[FieldChange], tables: Path) -> None:
    """List what changed: the first rows in full, all of it in changed.csv; nothing is written if nothing did."""
    path = tables / CHANGED_FILE
    if not changes:
        path.unlink(missing_ok=True)  # what an earlier replay found is no longer so
        return
    for key, fields in islice(groupby(changes, key=lambda change: change.key), SHOWN):
        print(f"changed: {_name(key)}")
        for change in fields:
            print(f"  {change.field}: stored {change.stored}, new {change.new}")
    write_csv(path, CHANGED_COLUMNS, changed_rows(changes))
    print(f"every changed field: {path}")


def report_comparison(rows: Sequence[ComparedRow], tables: Path) -> None:
    """Write comparison.csv and summary.csv, and print the summary."""
    summaries = summary_rows(summarise(rows))
    write_csv(tables / COMPARISON_FILE, COMPARISON_COLUMNS, comparison_rows(rows))
    write_csv(tables / SUMMARY_FILE, SUMMARY_COLUMNS, summaries)
    head = [
        *SUMMARY_COLUMNS[:2],
        "rows",
        "errors",
        "changed",
        *(f"{side} {name}" for name in MEANS for side in ("old", "new")),
    ]
    cells = [[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row] for row in summaries]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    for line in (head, *cells):
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print(f"every row: {tables / COMPARISON_FILE}")


def report_verdicts(regraded: Regraded, tables: Path) -> None:
    """Print the first verdicts that moved and write all of them; the file is there even if none did."""
    for old, new in regraded.moved[:SHOWN]:
        run_id, uid, session_id, attempt_id = old.key[:4]
        print(
            f"moved: {run_id} {uid}_{session_id}_a{attempt_id}: {old.grade.verdict} after {old.grade.seconds:.3f} s, "
            f"now {new.verdict} after {new.seconds:.3f} s"
        )
    write_csv(tables / VERDICTS_FILE, VERDICT_COLUMNS, regraded.table())
    print(f"every verdict that moved: {tables / VERDICTS_FILE}")


def _name(key: RowKey) -> str:
    return f"{key.run_id} {key.partition} step {key.step} {key.uid}_{key.session_id}_a{key.attempt_id}"
