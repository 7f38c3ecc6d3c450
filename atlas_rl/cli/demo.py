"""``atlas-rl demo prepare``: what a demo's run needs, made here in about a minute of one core."""

from pathlib import Path
from typing import Annotated

import typer


def demo_prepare(
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    seed: Annotated[int, typer.Option(help="Root of every draw.")] = 0,
    benchmark: Annotated[str, typer.Option(help="Which demo: urn, or urn_notes with a text before each call.")] = "urn",
) -> None:
    """Write a demo's questions and its warm-started model, unless they are there."""
    if (out / "model").is_dir():
        typer.echo(f"{out}: already prepared")
        return
    from atlas_rl.models.demo import demo_named, prepare

    prepare(out, demo_named(benchmark), seed, typer.echo)
