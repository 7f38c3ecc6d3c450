"""A process that saves in a loop is killed at random moments; after each kill the latest step must be there, whole.

The child saves two ranks of an actor and one of a critic, keeps every tenth step, and starts from the latest step like
a resumed run. Whatever it saves is a function of model, rank and step, so what is loaded can be compared to the bit.

    .venv/bin/python scripts/bench/checkpoint_kills.py --kills 200
"""

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import NoReturn

import torch

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.identity import ModelIdentity, RunIdentity
from atlas_rl.checkpoint.latest import latest_step
from atlas_rl.checkpoint.layout import committed_steps, leftovers, read_latest, step_name, step_of
from atlas_rl.checkpoint.loading import load_step
from atlas_rl.checkpoint.rank_writer import RankWriter
from atlas_rl.checkpoint.state import RankState, RunState
from atlas_rl.errors import AtlasError

RUN = RunIdentity(
    run_id="kills",
    models={
        "actor": ModelIdentity(world_size=2, base_fingerprint="a", lora=None),
        "critic": ModelIdentity(world_size=1, base_fingerprint="c", lora=None),
    },
)
RANKS = [(model, rank) for model, identity in RUN.models.items() for rank in range(identity.world_size)]
ANCHOR_EVERY = 10
NUM_VALUES = 40_000
"""Of each tensor: a rank's files are about half a megabyte, and their writing is a window that kills can hit."""


def rank_state(model: str, rank: int, step: int) -> RankState:
    """What a rank saves of a step."""
    draw = torch.Generator().manual_seed(1000 * step + 10 * rank + len(model))
    weights = {name: torch.randn(NUM_VALUES, generator=draw) for name in ("lora_A", "lora_B")}
    moments = {name: {"step": torch.tensor(float(step)), "exp_avg": -value} for name, value in weights.items()}
    return RankState(trainable=weights, optimizer={"state": moments}, scheduler={"last_epoch": step}, rng=[step, rank])


def run_state(step: int) -> RunState:
    """What the driver saves of a step."""
    return RunState(
        global_step=step, epoch=step // 7, actor_updates=step, critic_updates=2 * step, kl_coefficient=1 / (1 + step),
        dataloader=f"position {step}".encode(), rng=step,
    )  # fmt: skip


def is_as_saved(step_folder: Path) -> bool:
    """True if everything of a step is what was saved of it.

    Raises:
        AtlasError: it cannot be loaded.
    """
    step = step_of(step_folder)
    loaded = load_step(step_folder, expect=RUN)
    if loaded.run != run_state(step) or set(loaded.ranks) != set(RANKS):
        return False
    for (model, rank), found in loaded.ranks.items():
        saved = rank_state(model, rank, step)
        if (found.scheduler, found.rng) != (saved.scheduler, saved.rng) or list(found.trainable) != list(
            saved.trainable
        ):
            return False
        for name, value in saved.trainable.items():
            if not torch.equal(found.trainable[name], value):
                return False
            moments = saved.optimizer["state"][name]
            if any(not torch.equal(found.optimizer["state"][name][key], moments[key]) for key in moments):
                return False
    return True


def save_for_ever(folder: Path, seed: int) -> NoReturn:
    """The child: resume, then save step after step, each overlapping a pretended next one."""
    pauses = random.Random(seed)
    committer = StepCommitter(folder, identity=RUN, code_version="bench", anchor_every=ANCHOR_EVERY)
    last = committer.last_step()
    if last is not None and not is_as_saved(last):
        raise SystemExit(f"{last}: loads, but is not what was saved")
    step = 0 if last is None else step_of(last)
    writers = [RankWriter(model, rank) for model, rank in RANKS]
    while True:
        step += 1
        partial = committer.begin(step)
        for writer in writers:
            writer.save(partial, rank_state(writer.model, writer.rank, step))
        committer.commit(partial, run_state(step))
        time.sleep(pauses.uniform(0, 0.02))


def fork_child(folder: Path, seed: int) -> int:
    """Start the child and return its process id; a fork has torch imported already."""
    pid = os.fork()
    if pid:
        return pid
    try:
        save_for_ever(folder, seed)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def where_it_struck(folder: Path) -> str:
    """What the kill left behind."""
    left = {path.name.split(".")[2].split("-")[0] for path in leftovers(folder)}
    steps = committed_steps(folder)
    if steps and read_latest(folder) != steps[-1]:
        return "between name and latest"
    if "removed" in left:
        return "while removing"
    return "while writing" if "partial" in left else "between saves"


def main() -> int:
    """Kill, look, repeat; 1 if any kill left a folder that does not load or is not what was saved."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest-life", type=float, default=0.6, help="seconds from a start to its kill, at most")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # every start removes what the kill before it left, and would say so
    torch.set_num_threads(1)  # a fork must not inherit half a pool of threads
    moments = random.Random(options.seed)
    struck: Counter[str] = Counter()
    num_unloadable, last = 0, 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="checkpoint_kills_") as name:
        folder = Path(name)
        for kill in range(options.kills):
            pid = fork_child(folder, seed=kill)
            time.sleep(moments.uniform(0, options.longest_life))
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if not os.WIFSIGNALED(status):
                print(f"kill {kill}: the child ended by itself with status {status}; see above", file=sys.stderr)
                return 1
            struck[where_it_struck(folder)] += 1
            try:
                found = latest_step(folder)
                step = 0 if found is None else step_of(found)
                if (found is not None and not is_as_saved(found)) or step < last:
                    raise AtlasError(f"{found}: not what was saved, or older than step {last}, which was there before")
                last = step
            except AtlasError as error:
                print(f"kill {kill}: {error}", file=sys.stderr)
                num_unloadable += 1
        num_unloadable += sum(not is_as_saved(folder / step_name(step)) for step in committed_steps(folder))
        kept = committed_steps(folder)
    print(f"kills: n={options.kills} unloadable={num_unloadable}")
    print(
        f"steps saved: {last}, kept: {len(kept)}, struck: {dict(struck.most_common())}, "
        f"seconds: {time.monotonic() - begin:.0f}"
    )
    return int(num_unloadable > 0 or last == 0)


if __name__ == "__main__":
    sys.exit(main())
