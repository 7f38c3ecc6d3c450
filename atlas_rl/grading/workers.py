"""A few child processes that answer JSON lines, each reused until it hangs or dies, then replaced.

A thread cannot be stopped and `future.result(timeout)` stops nothing; a process can be killed. The children are
started as programs, not through multiprocessing, so that they import nothing of the parent: inside a Ray worker
or under pytest its main module is heavy. Calls may come from any thread; no signal is used.
"""

import json
import os
import queue
import select
import subprocess
from collections.abc import Sequence
from enum import StrEnum
from time import monotonic
from typing import Any, NamedTuple

from atlas_rl.errors import ConfigError, GradingError


class Outcome(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    TIMEOUT = "timeout"
    """The worker was killed at the time limit."""
    DIED = "died"
    """The worker ended, or answered no JSON object, and was replaced."""


class Reply(NamedTuple):
    """What came of one request."""

    outcome: Outcome
    body: dict[str, Any]
    """The worker's JSON object; empty unless answered."""
    seconds: float
    """Wall time from asking to the end; starting the worker is not part of it."""
    detail: str
    """Empty if answered, else why not, in one line."""


class WorkerPool:
    """At most ``num_workers`` children of one program; a request waits until one is free.

    The program writes one line when it is ready, then reads one JSON line a request from its standard input and
    writes one JSON line as the reply; it ends when its input ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        num_workers: int,
        time_limit_seconds: float,
        start_limit_seconds: float = 120.0,
    ) -> None:
        """Describe the pool; children start when they are first needed.

        Args:
            command: The program and its arguments.
            num_workers: Most children alive at once, at least 1.
            time_limit_seconds: Wall time one request may take, above 0.
            start_limit_seconds: Wall time until a new child must be ready, above 0.

        Raises:
            ConfigError: a number is out of its range.
        """
        if num_workers < 1 or not time_limit_seconds > 0 or not start_limit_seconds > 0:
            raise ConfigError(
                f"worker pool needs num_workers >= 1 and limits above 0 s, got {num_workers}, {time_limit_seconds}, "
                f"{start_limit_seconds}"
            )
        self._command = tuple(command)
        self._time_limit_seconds = time_limit_seconds
        self._start_limit_seconds = start_limit_seconds
        self._num_workers = num_workers
        # A slot holds a live child, or None until one is needed: however children end, the slots stay as many.
        # Last in, first out, so that a light load keeps one child busy instead of starting them all.
        self._slots: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(num_workers):
            self._slots.put(None)

    @property
    def num_workers(self) -> int:
        """Most children alive at once."""
        return self._num_workers

    def ask(self, request: dict[str, Any]) -> Reply:
        """Send one request and wait for its reply; blocks, so call it from a thread.

        Raises:
            GradingError: no child could be started.
        """
        worker = self._slots.get()
        try:
            if worker is None or not worker.is_alive:
                if worker is not None:
                    worker.kill()
                    worker = None
                worker = _Worker(self._command, self._start_limit_seconds)
            reply = worker.ask(request, self._time_limit_seconds)
            if reply.outcome is not Outcome.ANSWERED:
                worker.kill()
                worker = None
            return reply
        except BaseException:
            if worker is not None:
                worker.kill()
                worker = None
            raise
        finally:
            self._slots.put(worker)

    def close(self) -> None:
        """Wait for requests in flight and end all children; the pool may be used again."""
        workers = [self._slots.get() for _ in range(self._num_workers)]
        for worker in workers:
            if worker is not None:
                worker.kill()
            self._slots.put(None)


class _Worker:
    """One child and its two pipes."""

    def __init__(self, command: tuple[str, ...], start_limit_seconds: float) -> None:
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
        except OSError as error:
            raise GradingError(f"grading worker {' '.join(command)}: cannot start: {error}") from error
        self._unread = b""
        try:
            is_ready = self._read_line(monotonic() + start_limit_seconds) is not None
        except EOFError:
            self._process.wait()
            is_ready = False
        if not is_ready:
            self.kill()
            raise GradingError(
                f"grading worker {' '.join(command)}: not ready within {start_limit_seconds:g} s, "
                f"exit code {self._process.returncode}; run it by hand to see why"
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, Any], time_limit_seconds: float) -> Reply:
        start = monotonic()
        assert self._process.stdin is not None
        try:
            line: bytes | None = None
            if self._write(json.dumps(request).encode() + b"\n", start + time_limit_seconds):
                line = self._read_line(start + time_limit_seconds)
        except (EOFError, OSError):
            self._process.wait()
            detail = f"worker ended with exit code {self._process.returncode}"
            return Reply(Outcome.DIED, {}, monotonic() - start, detail)
        seconds = monotonic() - start
        if line is None:
            return Reply(Outcome.TIMEOUT, {}, seconds, f"stopped at the limit of {time_limit_seconds:g} s")
        try:
            body = json.loads(line)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return Reply(Outcome.DIED, {}, seconds, f"worker answered no JSON object: {line[:100]!r}")
        return Reply(Outcome.ANSWERED, body, seconds, "")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _write(self, data: bytes, deadline: float) -> bool:
        """Send all bytes; False if the deadline passed first."""
        assert self._process.stdin is not None
        descriptor = self._process.stdin.fileno()
        os.set_blocking(descriptor, False)
        while data:
            if not _wait(descriptor, select.POLLOUT, deadline):
                return False
            data = data[os.write(descriptor, data) :]
        return True

    def _read_line(self, deadline: float) -> bytes | None:
        """The next line without its end; None if the deadline passed first.

        Raises:
            EOFError: the child closed its output.
        """
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if not _wait(descriptor, select.POLLIN, deadline):
                return None
            received = os.read(descriptor, 65536)
            if not received:
                raise EOFError
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def _wait(descriptor: int, event: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, deadline - monotonic()) * 1000))
