"""What a step holds, as values, and the files that it is split into.

A part is a file NAME.json, with a NAME.safetensors beside it if the value holds tensors; the trainable tensors are one
safetensors file alone.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from atlas_rl.checkpoint.layout import RUN, rank_folder
from atlas_rl.checkpoint.tree import encode

TRAINABLE = "trainable"
OPTIMIZER = "optimizer"
SCHEDULER = "scheduler"
RNG = "rng"
PROGRESS = "progress"
DATALOADER = "dataloader"


@dataclass(frozen=True, kw_only=True)
class RankState:
    """One model on one rank."""

    trainable: Mapping[str, torch.Tensor]
    """Every tensor that trains, by parameter name: to save, as the engine has it; loaded, this rank's part."""
    optimizer: Any
    """As ``engine_state.optimizer_state`` gives it: groups and, by parameter name, the state of each."""
    scheduler: Any
    """The scheduler's state dict; None without a scheduler."""
    rng: Any
    """As ``rng.capture_rng`` gives it, of this rank's process."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What a run has once."""

    global_step: int
    """Steps done."""
    epoch: int
    """The pass over the data that the next batch belongs to."""
    actor_updates: int
    """Optimizer steps of the actor so far."""
    critic_updates: int
    """Optimizer steps of the critic so far."""
    kl_coefficient: float | None
    """Of the adaptive controller; None without KL in the reward."""
    dataloader: Any
    """Position in the data: plain values and tensors, or bytes that mean something to the caller."""
    rng: Any
    """As ``rng.capture_rng`` gives it, of the driver's process."""


@dataclass(frozen=True)
class Part:
    """One piece of a step, tensors not copied yet."""

    name: str
    """Path of its files relative to the step's folder, without an ending."""
    document: bytes | None
    """JSON; None for a part of nothing but tensors."""
    tensors: Mapping[str, torch.Tensor]


def json_file(part: str) -> str:
    """The file of a part's document."""
    return f"{part}.json"


def tensor_file(part: str) -> str:
    """The file of a part's tensors."""
    return f"{part}.safetensors"


def rank_parts(model: str, rank: int, state: RankState) -> list[Part]:
    """The parts of one rank of one model.

    Raises:
        TrainingError: a value would not come back as it is.
    """
    folder = rank_folder(model, rank)
    values = {OPTIMIZER: state.optimizer, SCHEDULER: state.scheduler, RNG: state.rng}
    return [Part(f"{folder}/{TRAINABLE}", None, state.trainable), *_parts(folder, values.items())]


def run_parts(state: RunState) -> list[Part]:
    """The parts of what a run has once.

    Raises:
        TrainingError: a value would not come back as it is.
    """
    progress = {
        "global_step": state.global_step,
        "epoch": state.epoch,
        "actor_updates": state.actor_updates,
        "critic_updates": state.critic_updates,
        "kl_coefficient": state.kl_coefficient,
    }
    return _parts(RUN, [(PROGRESS, progress), (DATALOADER, state.dataloader), (RNG, state.rng)])


def _parts(folder: str, values: Iterable[tuple[str, object]]) -> list[Part]:
    parts = []
    for name, value in values:
        document, tensors = encode(value)
        text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode("ascii")
        parts.append(Part(f"{folder}/{name}", text, tensors))
    return parts
