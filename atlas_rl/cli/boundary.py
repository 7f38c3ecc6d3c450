"""``atlas-rl demo boundary``: the questions of the boundary rollout stage and a model of random weights."""

from pathlib import Path
from typing import Annotated

import typer

_TOKENIZER_ROWS = 512
"""More rows teach the tokenizer nothing new."""


def prepare_boundary(
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    seed: Annotated[int, typer.Option(help="Root of every draw.")] = 0,
    longest_filler: Annotated[int, typer.Option(min=1, help="Digits of the longest observation.")] = 120,
) -> None:
    """Write the boundary stage's questions and an untrained tiny model, unless they are there."""
    if (out / "model").is_dir():
        typer.echo(f"{out}: already prepared")
        return
    import tempfile

    from atlas_rl.data.parquet import write_rows
    from atlas_rl.models.tiny import build_tiny_model
    from atlas_rl.tasks.benchmark import load_benchmark
    from atlas_rl.tasks.boundary import BoundaryConfig, make_boundary_rows

    config = BoundaryConfig(longest_filler=longest_filler)
    rows = make_boundary_rows(config, seed)
    write_rows(rows, config.benchmark, out / "rows.parquet")
    typer.echo(f"{out / 'rows.parquet'}: {len(rows)} questions, seed {seed}")
    # The model's folder is renamed when it is whole, so that an interrupted command leaves none that looks finished.
    with tempfile.TemporaryDirectory(dir=out, prefix=".model-") as scratch:
        fresh = Path(scratch) / "model"
        num_parameters = build_tiny_model(
            fresh, benchmark=load_benchmark(config.benchmark), rows=rows[:_TOKENIZER_ROWS], seed=seed
        )
        fresh.rename(out / "model")
    typer.echo(f"{out / 'model'}: {num_parameters} parameters, untrained")
