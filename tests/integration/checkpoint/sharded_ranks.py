"""Two processes with an FSDP2 model whose rows do not divide by two train, save and go on; two more load and go on.

Started by test_sharded.py with a FOLDER. Each rank writes the digests of what it has at the end into
FOLDER/PHASE_RANK.json, where the phase is save or load.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoint_states import bits, run_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.engine_state import capture_engine, restore_engine, trainable_specs
from atlas_rl.checkpoint.identity import ModelIdentity, RunIdentity
from atlas_rl.checkpoint.latest import latest_step
from atlas_rl.checkpoint.loading import load_rank
from atlas_rl.checkpoint.rank_writer import RankWriter

WORLD_SIZE = 2
CRITIC = ModelIdentity(world_size=WORLD_SIZE, base_fingerprint="f", lora=None)
RUN = RunIdentity(run_id="r", models={"critic": CRITIC})


class Rank:
    """A base that is frozen, an adapter of three rows and a head of one: rank 1 holds one row, and none of the head."""

    def __init__(self, rank: int, seed: int) -> None:
        self.rank = rank
        torch.manual_seed(0)
        base = torch.nn.Linear(6, 6)
        torch.manual_seed(seed)
        self.module = torch.nn.ModuleDict(
            {"base": base, "down": torch.nn.Linear(6, 3), "up": torch.nn.Linear(3, 6), "score": torch.nn.Linear(6, 1)}
        )
        self.module["base"].requires_grad_(requires_grad=False)
        mesh = init_device_mesh("cpu", (WORLD_SIZE,))
        for layer in self.module.values():
            fully_shard(layer, mesh=mesh)
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        torch.manual_seed(seed + rank)  # every rank draws its own rows

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            rows = torch.randn(4, 6)
            hidden = self.module["base"](rows) + self.module["up"](self.module["down"](rows))
            self.module["score"](hidden).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()

    def digests(self) -> dict[str, str]:
        state = capture_engine(self.module, self.optimizer, self.scheduler)
        held = {name: tensor.to_local() for name, tensor in state.trainable.items()}  # type: ignore[attr-defined]
        for name, moments in state.optimizer["state"].items():
            held |= {f"{name} {key}": getattr(value, "to_local", lambda v=value: v)() for key, value in moments.items()}
        held["rng"] = state.rng["torch_cpu"]
        return {name: f"{list(value.shape)} {hashlib.sha256(bits(value)).hexdigest()}" for name, value in held.items()}

    def save(self, folder: Path, step: int) -> None:
        committer = None
        names: list[Any] = [None]
        if self.rank == 0:
            committer = StepCommitter(folder, identity=RUN, code_version="v", anchor_every=None)
            names = [str(committer.begin(step))]
        dist.broadcast_object_list(names)
        writer = RankWriter("critic", self.rank)
        writer.save(Path(names[0]), capture_engine(self.module, self.optimizer, self.scheduler))
        self.train(1)  # while the files are written
        if committer is not None:
            committer.commit(Path(names[0]), run_state(step))
        writer.wait()
        if committer is not None:
            committer.close()

    def load(self, folder: Path) -> None:
        found = latest_step(folder)
        assert found is not None
        wanted = trainable_specs(self.module)
        state = load_rank(found, "critic", self.rank, expect=CRITIC, trainable=wanted)
        restore_engine(self.module, self.optimizer, self.scheduler, state)


def live(folder: Path, phase: str, rank: int) -> None:
    store = f"file://{folder}/{phase}_rendezvous"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD_SIZE)
    one = Rank(rank, seed=1 if phase == "save" else 2)
    if phase == "save":
        one.train(2)
        whole = {name: p.full_tensor() for name, p in one.module.named_parameters() if p.requires_grad}
        if rank == 0:
            torch.save({name: tensor.detach() for name, tensor in whole.items()}, folder / "whole.pt")
        one.save(folder / "checkpoints", 2)
    else:
        one.load(folder / "checkpoints")
        one.train(1)
    (folder / f"{phase}_{rank}.json").write_text(json.dumps(one.digests()))
    dist.destroy_process_group()


def run_phase(folder: Path, phase: str) -> int:
    """Exit code of the worse of two ranks, each a fork of this process."""
    children = []
    for rank in range(WORLD_SIZE):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                live(folder, phase, rank)
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


def main() -> int:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    return run_phase(folder, "save") or run_phase(folder, "load")


if __name__ == "__main__":
    sys.exit(main())
