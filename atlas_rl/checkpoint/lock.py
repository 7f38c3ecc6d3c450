"""One process commits into a folder of checkpoints at a time."""

import contextlib
import fcntl
import logging
import os
from pathlib import Path

from atlas_rl.checkpoint.layout import LOCK
from atlas_rl.errors import ConfigError

_logger = logging.getLogger(__name__)


class FolderLock:
    """Holds the lock of a folder until ``release``, or until the process ends in whatever way.

    A POSIX record lock: children that a fork leaves behind do not hold it, and network file systems know it. Taking it
    twice in one process succeeds, so a process must not open one folder twice.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            ConfigError: another process holds it.
        """
        path = folder / LOCK
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            holder = os.pread(self._handle, 80, 0).decode("ascii", errors="replace").strip() or "unknown"
            os.close(self._handle)
            raise ConfigError(
                f"{folder}: another process ({holder}) saves checkpoints here; end it, or choose another folder"
            ) from error
        except OSError as error:
            _logger.warning(
                "%s: this file system has no locks (%s); see to it that one run writes here", path, error.strerror
            )
        # Only a hint for the message above: a disk too full for it must not keep a run from starting.
        with contextlib.suppress(OSError):
            os.truncate(self._handle, 0)
            os.pwrite(self._handle, f"pid {os.getpid()} on {os.uname().nodename}\n".encode(), 0)

    def release(self) -> None:
        """Let another process have the folder; releasing twice is fine."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
