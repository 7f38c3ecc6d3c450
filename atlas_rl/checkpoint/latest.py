"""Which step a run resumes from."""

from collections.abc import Sequence
from pathlib import Path

from atlas_rl.checkpoint.layout import LATEST, committed_steps, read_latest, step_name
from atlas_rl.checkpoint.manifest import RESTORE
from atlas_rl.checkpoint.reading import StepFiles
from atlas_rl.errors import TrainingError


def latest_step(folder: Path) -> Path | None:
    """The folder of the newest step, every file of it checked; None if nothing was ever committed there.

    A step whose folder has its final name is complete. `latest` may name the one before it: the process was then killed
    between its last two acts.

    Raises:
        TrainingError: the newest step is damaged, or `latest` names one that is not there. The message names the newest
            whole step before it, which is for the user to choose, not for a program.
    """
    steps = committed_steps(folder)
    named = read_latest(folder)
    newest = max([*steps, *([] if named is None else [named])], default=None)
    if newest is None:
        return None
    try:
        if newest not in steps:
            raise TrainingError(f"{folder / LATEST}: names {step_name(newest)}, which is not there; {RESTORE}")
        StepFiles(folder / step_name(newest)).verify()
    except TrainingError as error:
        raise TrainingError(f"{error}; {_whole_before(folder, newest, steps)}") from error
    return folder / step_name(newest)


def _whole_before(folder: Path, newest: int, steps: Sequence[int]) -> str:
    for step in reversed([one for one in steps if one < newest]):
        try:
            StepFiles(folder / step_name(step)).verify()
        except TrainingError:
            continue
        return f"the newest whole step before it is {folder / step_name(step)}"
    return "no step before it is whole"
