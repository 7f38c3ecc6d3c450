"""Which steps stay, decided from what is on disk."""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from atlas_rl.checkpoint.durable import rename
from atlas_rl.checkpoint.layout import committed_steps, leftovers, removed_name, step_name
from atlas_rl.errors import ConfigError

_logger = logging.getLogger(__name__)


def check_anchor_every(anchor_every: int | None) -> None:
    """Refuse a distance that names no steps.

    Raises:
        ConfigError: it is less than 1.
    """
    if anchor_every is not None and anchor_every < 1:
        raise ConfigError(f"anchor_every must be at least 1, or None for no anchors, got {anchor_every}")


def surplus(steps: Iterable[int], latest: int, anchor_every: int | None) -> list[int]:
    """Steps to remove: older than the latest and no multiple of ``anchor_every``.

    Args:
        steps: On disk.
        latest: The step that `latest` names; it and whatever is newer stay.
        anchor_every: Distance of the anchors in steps; None: there are none.
    """
    return sorted(s for s in steps if s < latest and (anchor_every is None or s % anchor_every != 0))


def remove_surplus(folder: Path, latest: int, anchor_every: int | None) -> list[int]:
    """Remove the surplus steps of a folder of checkpoints; returns them.

    A step loses its name before its first file, so a kill never leaves part of a step under a step's name. A folder
    that cannot be removed is logged, and tried again by ``remove_leftovers``.

    Raises:
        TrainingError: a step cannot be renamed.
    """
    steps = surplus(committed_steps(folder), latest, anchor_every)
    for step in steps:
        doomed = folder / removed_name(step)
        rename(folder / step_name(step), doomed)
        _remove(doomed)
        _logger.info("%s: removed; step %s is the latest", folder / step_name(step), latest)
    return steps


def remove_leftovers(folder: Path) -> list[Path]:
    """Remove what a killed process left: steps it had not finished to write or to remove; returns their folders.

    Only the process that holds the folder's lock may do this.
    """
    found = leftovers(folder)
    for path in found:
        _logger.warning("%s: left by a process that was killed while it wrote or removed a step; removed", path)
        _remove(path)
    return found


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        _logger.warning("%s: cannot be removed: %s; the next start tries again", path, error)
