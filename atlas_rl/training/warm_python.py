"""Worker processes that start warm: forked from one process that has already imported everything.

A verl job is a dozen Python processes that import the same libraries one after the other, which is most of the time
to a first step on two cores. Here the driver imports them once and forks a server before it starts any thread; Ray
and multiprocessing then start their Python processes through a small client, which asks the server for a fork that
takes over the client's arguments, environment, working folder and file descriptors.

The client stays as long as its fork runs and ends with its exit code, so whoever started it can wait for it and kill
it. The server ends with the driver.
"""

import array
import contextlib
import json
import multiprocessing
import os
import random
import runpy
import shlex
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from atlas_rl.errors import TrainingError
from atlas_rl.training.warm_client import MAX_DESCRIPTORS, SOCKET_VARIABLE

EXECUTABLE_VARIABLE = "ATLAS_WARM_PYTHON"
"""Environment variable that names the executable for the processes that a fork starts itself (vLLM's engine core)."""

_LENGTH_BYTES = 8


def prepare_ray_for_forks() -> None:
    """Set what Ray's library reads once, when it is loaded, and that its workers cannot be told any more after a fork.

    The first job of a cluster that this process starts has id 1. A worker watches the process that it believes to be
    its raylet: here the driver, whose death ends the raylet too. Call before Ray is imported.
    """
    os.environ["RAY_JOB_ID"] = "01000000"
    os.environ["RAY_RAYLET_PID"] = str(os.getpid())
    os.environ.setdefault("RAY_AUTH_MODE", "token")


def forget_ray_job() -> None:
    """Take back what only forks need, so that Ray's own processes do not inherit it."""
    os.environ.pop("RAY_JOB_ID", None)
    os.environ.pop("RAY_RAYLET_PID", None)


class WarmPython:
    """A running fork server and the command that starts a Python process through it."""

    def __init__(self, folder: Path) -> None:
        """Fork the server; everything that its forks should have must be imported by now.

        Args:
            folder: An existing folder for the server's socket, whose path may have at most 107 bytes.

        Raises:
            TrainingError: a thread runs already, which a fork would lose in the middle of whatever it holds.
        """
        if threading.active_count() > 1:
            names = [thread.name for thread in threading.enumerate()]
            raise TrainingError(f"warm start of workers: threads {names} run already; fork the server before them")
        self._path = folder / "warm.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self._path))
        listener.listen(64)
        driver_alive, held_by_driver = os.pipe()
        self._server = os.fork()
        if self._server == 0:
            os.close(held_by_driver)
            _never_return(_serve, listener, driver_alive)
        listener.close()
        os.close(driver_alive)
        self._held_by_driver = held_by_driver
        client = Path(__file__).with_name("warm_client.py")
        command = ["env", f"{SOCKET_VARIABLE}={self._path}", sys.executable, "-S", "-E", str(client)]
        self.executable = folder / "python"
        """Stands for the Python executable."""
        self.executable.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        self.executable.chmod(0o755)

    def close(self) -> None:
        """End the server; forks that still run go on."""
        os.close(self._held_by_driver)
        os.waitpid(self._server, 0)
        self._path.unlink(missing_ok=True)


def _serve(listener: socket.socket, driver_alive: int) -> None:
    """Fork for each client until the driver is gone; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setsid()

    def end_with_driver() -> None:
        os.read(driver_alive, 1)
        os._exit(0)

    threading.Thread(target=end_with_driver, daemon=True).start()
    while True:
        connection, _ = listener.accept()
        # The first fork waits for the second and reports its exit; the server goes on accepting meanwhile.
        if os.fork() == 0:
            listener.close()
            os.close(driver_alive)
            _never_return(_attend, connection)
        connection.close()
        _reap()


def _never_return(work: Callable[..., None], *arguments: object) -> None:
    """Run the work of a fork and end the process: it must never unwind into its copy of the driver's stack."""
    try:
        work(*arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _attend(connection: socket.socket) -> None:
    """Start one process, wait for it, tell its client; never returns."""
    request, descriptors = _receive(connection)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(request, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    try:
        connection.sendall(json.dumps({"pid": pid}).encode() + b"\n")
    except ConnectionError:  # the client was killed while it waited
        os.kill(pid, signal.SIGKILL)

    def end_with_client() -> None:
        with contextlib.suppress(ConnectionError):
            if connection.recv(1):
                return
        os.kill(pid, signal.SIGKILL)

    threading.Thread(target=end_with_client, daemon=True).start()
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(ConnectionError):  # a client that was killed asks no more
        connection.sendall(json.dumps({"exit": os.waitstatus_to_exitcode(status)}).encode() + b"\n")
    os._exit(0)


def _receive(connection: socket.socket) -> tuple[dict[str, object], list[int]]:
    numbers = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(_LENGTH_BYTES, socket.CMSG_SPACE(MAX_DESCRIPTORS * numbers.itemsize))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    left = int.from_bytes(data, "big")
    parts = []
    while left:
        part = connection.recv(left)
        if not part:
            os._exit(1)
        parts.append(part)
        left -= len(part)
    request: dict[str, object] = json.loads(b"".join(parts))
    return request, list(numbers)


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    """Turn this fork into the process that the client was asked to be; never returns."""
    code = 1
    try:
        wanted = request["descriptors"]
        assert isinstance(wanted, list)
        _place(descriptors, wanted)
        environment, arguments, folder = request["environment"], request["arguments"], request["folder"]
        assert isinstance(environment, dict)
        assert isinstance(arguments, list)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(str(folder))
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin = os.fdopen(0, "r", closefd=False)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        if EXECUTABLE_VARIABLE in os.environ:
            multiprocessing.set_executable(os.environ[EXECUTABLE_VARIABLE])
        code = _run(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _place(received: list[int], wanted: list[int]) -> None:
    """Give the received descriptors the numbers that they had in the client."""
    lifted = [os.dup(descriptor) for descriptor in received]
    while any(descriptor in wanted for descriptor in lifted):
        lifted = [os.dup(descriptor) if descriptor in wanted else descriptor for descriptor in lifted]
    for descriptor, number in zip(lifted, wanted, strict=True):
        os.dup2(descriptor, number, inheritable=True)
    for descriptor in {*lifted, *received} - set(wanted):
        os.close(descriptor)


def _run(arguments: list[str]) -> int:
    """Run ``python ARGUMENTS`` as far as Ray and multiprocessing use it: flags, then -c CODE, -m MODULE or a script."""
    place = 0
    while arguments[place] in {"-u", "-B", "-E", "-s", "-S", "-I"}:
        place += 1
    kind, rest = arguments[place], arguments[place + 1 :]
    try:
        if kind == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        elif kind == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [kind, *rest]
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None:
            return 0
        return ended.code if isinstance(ended.code, int) else 1
    return 0
