"""States that are a function of model, rank and step alone, and the ways to save and compare them."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.durable import OpenFile, create
from atlas_rl.checkpoint.identity import LoraIdentity, ModelIdentity, RunIdentity
from atlas_rl.checkpoint.loading import LoadedStep, load_step
from atlas_rl.checkpoint.rank_writer import RankWriter
from atlas_rl.checkpoint.state import RankState, RunState

LORA = LoraIdentity(rank=64, alpha=128.0, target_modules=("q_proj", "v_proj"))
ACTOR = ModelIdentity(world_size=2, base_fingerprint="a" * 64, lora=LORA)
CRITIC = ModelIdentity(world_size=1, base_fingerprint="c" * 64, lora=LORA)
RUN = RunIdentity(run_id="r", models={"actor": ACTOR, "critic": CRITIC})


def ranks_of(identity: RunIdentity) -> list[tuple[str, int]]:
    return [(model, rank) for model, one in identity.models.items() for rank in range(one.world_size)]


RANKS = ranks_of(RUN)


def rank_state(model: str, rank: int, step: int) -> RankState:
    """Two adapters and a bf16 head, an optimizer that has stepped, a scheduler, and generators."""
    draw = torch.Generator().manual_seed(1000 * step + 10 * rank + len(model))
    trainable = {
        "layer.lora_A": torch.randn(8, 16, generator=draw),
        "layer.lora_B": torch.randn(16, 8, generator=draw),
        "score.weight": torch.randn(1, 16, generator=draw).bfloat16(),
        "score.empty": torch.empty(0, 16),
        "score.bias": torch.randn((), generator=draw),
    }
    moments = {
        name: {"step": torch.tensor(float(step)), "exp_avg": value * 0.5, "exp_avg_sq": value.square()}
        for name, value in trainable.items()
    }
    group = {"lr": 1e-4 / (1 + step), "betas": (0.9, 0.95), "fused": None, "params": list(trainable)}
    return RankState(
        trainable=trainable,
        optimizer={"groups": [group], "state": moments},
        scheduler={"last_epoch": step, "base_lrs": [1e-4], "_last_lr": [1e-4 / (1 + step)]},
        rng={"torch_cpu": torch.randint(0, 256, (5056,), generator=draw, dtype=torch.uint8), "words": np.arange(step)},
    )


def run_state(step: int) -> RunState:
    return RunState(
        global_step=step, epoch=step // 4, actor_updates=2 * step, critic_updates=4 * step,
        kl_coefficient=0.1 / (1 + step), dataloader={"position": step, 0: b"\x00\xff", "seen": [step, None]},
        rng={"python": random.Random(step).getstate()[1][:3]},
    )  # fmt: skip


def save_step(
    folder: Path, step: int, *, anchor_every: int | None = 1, open_file: OpenFile = create, identity: RunIdentity = RUN
) -> Path:
    """Save one step as its ranks and its driver do; returns its folder."""
    with StepCommitter(
        folder, identity=identity, code_version="v", anchor_every=anchor_every, open_file=open_file
    ) as committer:
        return save_with(committer, step, open_file=open_file)


def save_with(committer: StepCommitter, step: int, *, open_file: OpenFile = create) -> Path:
    partial = committer.begin(step)
    writers = [RankWriter(model, rank, open_file=open_file) for model, rank in ranks_of(committer.identity)]
    for writer in writers:
        writer.save(partial, rank_state(writer.model, writer.rank, step))
    committer.commit(partial, run_state(step))
    for writer in writers:
        writer.wait()
    final = committer.wait()
    assert final is not None
    return final


def load(step_folder: Path, identity: RunIdentity = RUN) -> LoadedStep:
    return load_step(step_folder, expect=identity)


def is_step(loaded: LoadedStep, step: int) -> bool:
    """True if what was loaded is, to the bit, what ``save_step`` saves of that step."""
    ranks = ranks_of(loaded.manifest.identity)
    expected = {(model, rank): rank_state(model, rank, step) for model, rank in ranks}
    return (
        same(vars(loaded.run), vars(run_state(step)))
        and loaded.ranks.keys() == expected.keys()
        and all(same(vars(loaded.ranks[key]), vars(expected[key])) for key in expected)
    )


def same(a: Any, b: Any) -> bool:
    """Equal in type and bits all the way down."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(one, other) for one, other in zip(a, b, strict=True))
    return bool(repr(a) == repr(b))


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
