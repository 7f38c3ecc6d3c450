"""Keeps a run's terminal readable: raw output of every library goes to a log file."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def raw_output_to(path: Path) -> Iterator[TextIO]:
    """Send this process's stdout and stderr, and those of its children, to ``path``; yield the terminal.

    File descriptors are redirected, not Python's objects, so that C libraries and child processes are caught too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    terminal = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield terminal
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for descriptor in (*kept, log):
            os.close(descriptor)
        terminal.close()
