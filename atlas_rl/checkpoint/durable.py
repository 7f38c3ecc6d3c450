"""Files that are on the disk, not in a cache, before anything names them."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from atlas_rl.errors import TrainingError

OpenFile = Callable[[Path], BinaryIO]
"""Creates a file for writing; raises FileExistsError if it is there. Tests pass one that fails."""

_PIECE_BYTES = 8 << 20
"""Large enough that hashing and writing run outside the interpreter's lock nearly all the time."""


def create(path: Path) -> BinaryIO:
    """Open a new file for writing."""
    return path.open("xb")


def write_file(path: Path, chunks: Iterable[bytes | memoryview], open_file: OpenFile = create) -> tuple[int, str]:
    """Write a new file, wait until the disk has it, and return its size in bytes and its sha256 (hex).

    Raises:
        TrainingError: the disk refused it; the message names the file and what to do.
    """
    digest = hashlib.sha256()
    size = 0
    try:
        with open_file(path) as file:
            for chunk in chunks:
                view = memoryview(chunk)
                for start in range(0, len(view), _PIECE_BYTES):
                    piece = view[start : start + _PIECE_BYTES]
                    file.write(piece)
                    digest.update(piece)
                    size += len(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _refused(path, size, error) from error
    return size, digest.hexdigest()


def replace_file(path: Path, content: bytes, open_file: OpenFile = create) -> None:
    """Put ``content`` at ``path``: a reader, or a kill at any moment, sees all of it or what was there before.

    One process at a time may do this to a path.

    Raises:
        TrainingError: the disk refused it; what was there before is there still.
    """
    rename(_write_beside(path, content, open_file), path)


def hand_over(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` for a process that looks for it there, which may move the folder at once.

    The name is not waited for on the disk: whoever finds it needs it no more once it has acted.

    Raises:
        TrainingError: the disk refused it.
    """
    rename(_write_beside(path, content, create), path, waits_for_disk=False)


def _write_beside(path: Path, content: bytes, open_file: OpenFile) -> Path:
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    write_file(beside, [content], open_file)
    return beside


def rename(source: Path, target: Path, *, waits_for_disk: bool = True) -> None:
    """Rename within a folder and wait until the disk has it, unless told not to.

    Raises:
        TrainingError: the disk refused it.
    """
    try:
        source.replace(target)
        if waits_for_disk:
            _sync_folder(target.parent)
    except OSError as error:
        raise TrainingError(
            f"{target}: cannot be renamed from {source.name}: {error.strerror}; see to the disk"
        ) from error


def sync_folders(*folders: Path) -> None:
    """Wait until the disk has the names of what lies in the folders.

    Raises:
        TrainingError: the disk refused it.
    """
    for folder in folders:
        try:
            _sync_folder(folder)
        except OSError as error:
            raise TrainingError(
                f"{folder}: the disk did not take its list of files: {error.strerror}; see to the disk"
            ) from error


def make_folder(folder: Path) -> None:
    """Create a folder and those above it; fine if it is there.

    Raises:
        TrainingError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"{folder}: cannot be made: {error.strerror}; give a folder that can be written") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refused(path: Path, size: int, error: OSError) -> TrainingError:
    free = ""
    with contextlib.suppress(OSError):
        free = f" ({shutil.disk_usage(path.parent).free} bytes free there)"
    return TrainingError(
        f"{path}: cannot be written: {error.strerror} after {size} bytes{free}; steps committed before are whole; "
        "make room or restore access, then resume the run"
    )
