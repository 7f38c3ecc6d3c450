"""``atlas-rl run show`` and ``atlas-rl run diff``: what a run was started with, and in what two of them differ."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

_DIFFERENT, _FAILED = 1, 2
"""Exit codes of diff, those of diff(1)."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def run_show(
    run: Annotated[Path, typer.Argument(help="artifacts/RUN.")],
    config: Annotated[bool, typer.Option("--config", help="Every key, not only those that were changed.")] = False,
    as_json: Json = False,
) -> None:
    """Print what a run was started with, what its resumes changed, and how far it came."""
    from atlas_rl.cli.run_tables import print_overview
    from atlas_rl.cli.saved_steps import saved_steps
    from atlas_rl.reporting.run_overview import read_overview

    overview = read_overview(run)
    steps = saved_steps(run, overview.attempts[0])
    if as_json:
        print(json.dumps(overview.plain() | {"checkpoints": steps.plain()}, indent=2))
    else:
        print_overview(overview, steps, all_keys=config)


def run_diff(
    a: Annotated[Path, typer.Argument(help="A run's folder or a manifest.")],
    b: Annotated[Path, typer.Argument(help="Another.")],
    ignore: Annotated[list[str] | None, typer.Option(help="A dotted key to leave out, with all below it.")] = None,
    as_json: Json = False,
) -> None:
    """Print every fact in which two runs differ; exits with 0 if there is none, 1 if there are, 2 on an error."""
    from atlas_rl.cli.run_tables import print_comparison
    from atlas_rl.errors import AtlasError
    from atlas_rl.reporting.manifest import RUN_FILE, read_manifest
    from atlas_rl.reporting.manifest_diff import compare

    try:
        first, second = (read_manifest(path / RUN_FILE if path.is_dir() else path) for path in (a, b))
    except AtlasError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise typer.Exit(_FAILED) from None
    found = compare(first, second, ignore or ())
    if as_json:
        print(json.dumps({"a": str(a), "b": str(b), **found.plain()}, indent=2))
    else:
        print_comparison(found)
    if not found.is_equal:
        raise typer.Exit(_DIFFERENT)
