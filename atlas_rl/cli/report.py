"""``atlas-rl report``: tables of a run as CSV."""

from pathlib import Path
from typing import Annotated

import typer

report_app = typer.Typer(no_args_is_help=True, help="Write tables of a run.")


@report_app.callback()
def report() -> None:
    """Write tables of a run."""  # a group of one command keeps that command's name only with a callback


@report_app.command("call-advantage")
def call_advantage_table(
    run: Annotated[Path, typer.Argument(help="artifacts/RUN.")],
    out: Annotated[Path, typer.Option(help="CSV to write.")] = Path("call_advantage.csv"),
) -> None:
    """Mean raw and whitened advantage on the tokens of each kind of call, by step."""
    from atlas_rl.reporting.call_advantage import CallAdvantage, call_advantage
    from atlas_rl.reporting.replay_tables import write_csv

    found = call_advantage(run)
    lines = [line for step in found.steps for line in step.lines]
    write_csv(out, CallAdvantage._fields, [["" if value is None else value for value in line] for line in lines])
    unrecorded = sum(line.num_rows for line in lines if line.call == "unrecorded")
    if found.unfinished:
        print(f"steps without advantages, as a kill leaves them: {', '.join(map(str, found.unfinished))}")
    print(
        f"call_advantage: steps={len(found.steps)} rows={sum(line.num_rows for line in lines if line.call == 'all')} "
        f"unrecorded={unrecorded} faults={sum(step.num_faults for step in found.steps)} file={out}"
    )
