"""Names inside a folder of checkpoints, and what can be told from the names alone.

CHECKPOINTS/
  latest                            one line: the name of the step that was committed last
  global_step_12/                   a committed step; nothing in it changes any more
    manifest.json
    run/progress.json, ...          what exists once: counters, data position, RNG of the driver
    actor/rank_0/optimizer.json, ...  what rank 0 of the actor has
  .global_step_13.partial-1f0c9a2e  a step being written
  .global_step_4.removed-77ab01cd   a step being removed
  abandoned_step_20-5c01d3aa        a step that a rewind set aside
  .lock                             held by the process that commits
"""

import re
import secrets
from pathlib import Path

from atlas_rl.errors import TrainingError

LATEST = "latest"
LOCK = ".lock"
MANIFEST = "manifest.json"
RECEIPTS = "receipts"
"""Folder of a partial step: one file a rank, written when all its files are on disk; gone before the commit."""
RUN = "run"
"""Folder of a step for what exists once; no model may have this name."""

_STEP = re.compile(r"global_step_(0|[1-9][0-9]*)")
_LEFTOVER = re.compile(r"\.global_step_[0-9]+\.(partial|removed)-[0-9a-f]+")
_PARTIAL = re.compile(r"\.global_step_(0|[1-9][0-9]*)\.partial-[0-9a-f]+")


def step_name(step: int) -> str:
    """Name of a committed step's folder."""
    return f"global_step_{step}"


def partial_name(step: int) -> str:
    """A new name for a step being written: a writer that outlived its run can never meet another's files."""
    return f".global_step_{step}.partial-{secrets.token_hex(4)}"


def removed_name(step: int) -> str:
    """A new name for a step being removed."""
    return f".global_step_{step}.removed-{secrets.token_hex(4)}"


def abandoned_name(step: int) -> str:
    """A new name for a step that a rewind sets aside."""
    return f"abandoned_step_{step}-{secrets.token_hex(4)}"


def step_of(folder: Path) -> int:
    """The step of a committed step's folder.

    Raises:
        TrainingError: the folder's name is not that of a step.
    """
    found = _STEP.fullmatch(folder.name)
    if found is None:
        raise TrainingError(f"{folder}: not the folder of a saved step; name one like CHECKPOINTS/global_step_12")
    return int(found[1])


def step_of_partial(folder: Path) -> int:
    """The step of a folder being written.

    Raises:
        TrainingError: the folder's name is not that of a partial step.
    """
    found = _PARTIAL.fullmatch(folder.name)
    if found is None:
        raise TrainingError(f"{folder}: not a folder that StepCommitter.begin made; save into the one it returned")
    return int(found[1])


def committed_steps(folder: Path) -> list[int]:
    """Steps whose folders are there under their final names, ascending; [] without a folder."""
    if not folder.is_dir():
        return []
    found = (_STEP.fullmatch(path.name) for path in folder.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in found if match is not None)


def leftovers(folder: Path) -> list[Path]:
    """Folders of steps that a process began to write or to remove, by name."""
    return sorted(path for path in folder.iterdir() if _LEFTOVER.fullmatch(path.name))


def rank_folder(model: str, rank: int) -> str:
    """Folder of one rank of one model, relative to its step's."""
    return f"{model}/rank_{rank}"


def receipt_name(model: str, rank: int) -> str:
    """The receipt of one rank of one model, relative to its step's folder."""
    return f"{RECEIPTS}/{model}_{rank}.json"


def read_latest(folder: Path) -> int | None:
    """The step that the file `latest` names; None if there is no such file.

    Raises:
        TrainingError: the file does not hold exactly one line with the name of a step.
    """
    path = folder / LATEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TrainingError(f"{path}: cannot be read: {error.strerror}; restore access to it") from error
    text = content.decode("ascii", errors="replace")
    found = _STEP.fullmatch(text.removesuffix("\n"))
    if found is None or not text.endswith("\n"):
        raise TrainingError(
            f"{path}: holds {text[:60]!r}, not one line like 'global_step_12'; write into it the name of the newest "
            f"step that is there: {_newest(folder)}"
        )
    return int(found[1])


def _newest(folder: Path) -> str:
    steps = committed_steps(folder)
    return step_name(steps[-1]) if steps else "none, so remove the file"
