"""A folder that appears whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atlas_rl.errors import ConfigError


@contextmanager
def new_folder(out_dir: Path) -> Iterator[Path]:
    """Give a folder beside ``out_dir`` to write in; when the block ends well it becomes ``out_dir``.

    Raises:
        ConfigError: something is there already, or the folder cannot be made.
    """
    if os.path.lexists(out_dir) and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise ConfigError(f"out {out_dir} is there and not empty; choose a new folder or remove it first")
    partial = out_dir.with_name(f".{out_dir.name}.partial{os.getpid()}")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"out {out_dir}: cannot be made: {error.strerror}; choose another folder") from error
    try:
        yield partial
        os.replace(partial, out_dir)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
