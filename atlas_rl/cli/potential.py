"""``atlas-rl potential``: tables of potentials, built from stored runs and shown."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atlas_rl.errors import ConfigError

if TYPE_CHECKING:
    from atlas_rl.reporting.potential_counts import Counting, Question
    from atlas_rl.rewards.potential_table import PotentialTable

potential_app = typer.Typer(no_args_is_help=True, help="Build and show tables that shape rewards.")


@potential_app.command("build")
def potential_build(
    runs: Annotated[list[Path], typer.Argument(help="artifacts/RUN, one or more.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    cover: Annotated[
        list[Path] | None, typer.Option(help="Dataset whose questions the table must have; may be given again.")
    ] = None,
    strength: Annotated[str, typer.Option(help="Submits that the prior is worth, above 0.")] = "4",
    partition: Annotated[str, typer.Option(help="Whose submits count: train, val or both.")] = "both",
    from_step: Annotated[int, typer.Option(min=0, help="First global step whose submits count.")] = 0,
) -> None:
    """Count how often a submit at each prefix was right in stored runs, and write the table."""
    from atlas_rl.reporting.manifest import write_atomically
    from atlas_rl.reporting.potential_counts import Counts
    from atlas_rl.rewards.potential_table import encode_table, read_table

    if out.exists():
        raise ConfigError(f"{out} is there already; remove it or choose another --out")
    counts = Counts(_counting(strength, partition, from_step))
    for file in cover or ():
        counts.add_questions(_questions(file))
    for run in runs:
        told = counts.add_run(run)
        for line in told.torn:
            typer.echo(f"torn: {line}")
        typer.echo(
            f"{run}: {told.trajectories} trajectories, {told.superseded} superseded, {told.not_asked_for} of another "
            f"partition or step, {told.no_submit} without a graded submit, {told.submits} counted"
        )
    header, rows = counts.table()
    write_atomically(out, encode_table(header, rows))
    _show(read_table(str(out)))


@potential_app.command("show")
def potential_show(table: Annotated[Path, typer.Argument(help="Parquet file of potential build.")]) -> None:
    """Print what a table was counted from, its counts and its values."""
    from atlas_rl.rewards.potential_table import read_table

    _show(read_table(str(table)))


def _counting(strength: str, partition: str, from_step: int) -> "Counting":
    from decimal import Decimal, InvalidOperation

    from atlas_rl.records.vocabulary import Partition
    from atlas_rl.reporting.potential_counts import Counting

    try:
        submits = Decimal(strength)
    except InvalidOperation:
        raise ConfigError(f"--strength must be a decimal number, got {strength!r}") from None
    if partition not in (*Partition, "both"):
        raise ConfigError(f"--partition must be one of {', '.join(Partition)}, both, got {partition!r}")
    partitions = tuple(Partition) if partition == "both" else (Partition(partition),)
    return Counting(strength=submits, partitions=partitions, from_step=from_step)


def _questions(file: Path) -> "list[Question]":
    from atlas_rl.data.parquet import read_rows
    from atlas_rl.reporting.potential_counts import Question

    return [
        Question(
            row.question_id, row.permutation_id, row.candidate_fingerprint, row.benchmark, row.max_explores, str(file)
        )
        for row in read_rows(file)
    ]


def _show(table: "PotentialTable") -> None:
    header = table.header
    for run in header.runs:
        typer.echo(f"run {run.run_id}: {run.submits} submits of {run.trajectories} trajectories")
    typer.echo(
        f"counted: {' and '.join(header.partitions)}, from step {header.from_step}; the prior is worth "
        f"{header.strength} submits"
    )
    num_prefixes = 0
    for name, pool in header.pools.items():
        rows = [row for row in table.rows.values() if row.benchmark == name]
        num_prefixes += sum(len(row.total) for row in rows)
        typer.echo(f"{name}: {len(rows)} questions")
        typer.echo("prefix  submits    right  counted questions   prior    lowest    mean  highest")
        for prefix, prior in enumerate(table.priors[name]):
            here = [row for row in rows if prefix < len(row.total)]
            values = [table.value(*row[:3], prefix) for row in here]
            spread = (min(values), sum(values) / len(values), max(values)) if values else ()
            typer.echo(
                f"{prefix:6d} {pool.total[prefix]:8d} {pool.right[prefix]:8d} "
                f"{sum(row.total[prefix] > 0 for row in here):18d}  {float(prior):6.4f}    "
                + "  ".join(f"{float(value):6.4f}" for value in spread)
            )
    submits = sum(sum(row.total) for row in table.rows.values())
    typer.echo(
        f"potential: questions={len(table.rows)} prefixes={num_prefixes} submits={submits} sha256={table.sha256}"
    )
