"""Kill a saving process at each of its acts on the file system in turn, and print what is left as JSON.

Started by test_kills.py in an interpreter of its own, which has no threads that a fork would lose.
"""

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NoReturn

import torch
from checkpoint_states import CRITIC, is_step, load, rank_state, run_state, save_step

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.identity import RunIdentity
from atlas_rl.checkpoint.latest import latest_step
from atlas_rl.checkpoint.layout import committed_steps, leftovers, step_of
from atlas_rl.checkpoint.rank_writer import RankWriter

ACTS = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"}
NEVER = 10**9
RUN = RunIdentity(run_id="r", models={"critic": CRITIC})


def kill_at(act: int, log: Path) -> None:
    """Make this process kill itself just before its n-th act; log the acts."""
    lock = threading.Lock()
    count = 0
    handle = os.open(log, os.O_WRONLY | os.O_CREAT)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event not in ACTS and not writes:
            return
        with lock:
            count += 1
            if count == act:
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(handle, f"{event} {arguments[0]}\n".encode())

    sys.addaudithook(hook)


def save_and_end(folder: Path, step: int) -> NoReturn:
    """Start on a folder, save one step, the rank before the driver so that the order of acts is always the same."""
    code = 1
    try:
        with StepCommitter(folder, identity=RUN, code_version="v", anchor_every=2) as committer:
            committer.last_step()
            partial = committer.begin(step)
            writer = RankWriter("critic", 0)
            writer.save(partial, rank_state("critic", 0, step))
            writer.wait()
            committer.commit(partial, run_state(step))
            committer.wait()
        code = 0
    finally:
        os._exit(code)


def child(folder: Path, step: int, act: int, log: Path) -> int:
    """Wait status of a process that saves a step and is killed at an act."""
    pid = os.fork()
    if pid == 0:
        kill_at(act, log)
        save_and_end(folder, step)
    return os.waitpid(pid, 0)[1]


def outcome(folder: Path) -> dict[str, Any]:
    """What a start after the kill finds, and whether all that is kept is whole."""
    found = latest_step(folder)
    assert found is not None
    seen = {"step": step_of(found), "is_exact": is_step(load(found, RUN), step_of(found))}
    with StepCommitter(folder, identity=RUN, code_version="v", anchor_every=2) as committer:
        committer.last_step()
    kept = committed_steps(folder)
    return seen | {
        "named": (folder / "latest").read_text().strip(),
        "kept_exact": all(is_step(load(folder / f"global_step_{step}", RUN), step) for step in kept),
        "leftovers": len(leftovers(folder)),
    }


def main() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    # A kill loses no written page, so no save here needs to wait for a disk, nor to have one.
    os.fsync = lambda _handle: None
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        before = Path(name) / "before"
        for step in (2, 3):
            save_step(before, step, anchor_every=2, identity=RUN)
        (before / ".global_step_4.partial-00000000" / "run").mkdir(parents=True)
        log = Path(name) / "log"
        assert child(shutil.copytree(before, Path(name) / "whole"), 4, NEVER, log) == 0
        acts = log.read_text().splitlines()
        results = []
        for act in range(1, len(acts) + 1):
            folder = shutil.copytree(before, Path(name) / f"killed_{act}")
            status = child(folder, 4, act, Path(name) / f"log_{act}")
            results.append({"act": acts[act - 1], "killed": os.WIFSIGNALED(status)} | outcome(folder))
            shutil.rmtree(folder)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
