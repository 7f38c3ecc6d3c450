"""Actor and critic in this process, without Ray or a rollout engine: for benchmarks and checks of their arithmetic."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorkerConfig
from verl.workers.utils.losses import value_loss

from atlas_rl.training.critic_batching import set_critic_batching
from atlas_rl.training.workers import AtlasActorWorker, AtlasTrainingWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorRow:
    """One row as the rollout hands it to the actor. P prompt tokens, T response tokens."""

    uid: str
    session_id: int
    prompt_ids: Sequence[int]
    """[P]"""
    response_ids: Sequence[int]
    """[T]"""
    response_mask: Sequence[int]
    """[T] 1 on sampled tokens."""
    benchmark_spec: str
    generations: Sequence[tuple[int, int, str | None]]
    """Response offset, sampled tokens and grammar hash of each generation."""
    step: int = 0


@contextmanager
def only_rank() -> Iterator[None]:
    """Let this process be the only rank of the process group that the first worker joins, and close it after them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def build_actor(config: Any) -> AtlasActorWorker:
    """The actor with its loss, within ``only_rank``.

    Args:
        config: As the training program composes it; ``actor_rollout_ref`` is read.
    """
    worker = AtlasActorWorker(config=config.actor_rollout_ref, role="actor")
    worker.init_model()
    return worker


def build_critic(config: Any) -> AtlasTrainingWorker:
    """The critic with its loss, as verl's trainer builds it, within ``only_rank``.

    Args:
        config: As the training program composes it; ``critic`` is read.
    """
    critic = omega_conf_to_dataclass(config.critic)
    set_critic_batching(critic.engine, config.critic)
    worker = AtlasTrainingWorker(
        TrainingWorkerConfig(
            model_type="value_model", model_config=critic.model, engine_config=critic.engine,
            optimizer_config=critic.optim, checkpoint_config=critic.checkpoint, profiler_config=None,
        )
    )  # fmt: skip
    worker.reset()
    worker.set_loss_fn(partial(value_loss, config=critic))
    return worker


@contextmanager
def standalone_actor(config: Any) -> Iterator[AtlasActorWorker]:
    """Build the actor of a composed configuration as the only rank of a process group, and close the group after it.

    Args:
        config: As for ``build_actor``.
    """
    with only_rank():
        yield build_actor(config)


def actor_batch(rows: Sequence[ActorRow], per_token: Mapping[str, Sequence[torch.Tensor]] | None = None) -> TensorDict:
    """Rows as the TransferQueue hands them to a worker.

    Args:
        rows: B rows.
        per_token: Further or other fields, [T] a row each, such as ``old_log_probs`` and ``advantages``.
    """
    names: dict[str, list[torch.Tensor]] = {"prompts": [], "responses": [], "input_ids": [], "position_ids": []}
    names |= {"response_mask": [], "loss_mask": []}
    for row in rows:
        prompts, responses = torch.tensor(row.prompt_ids), torch.tensor(row.response_ids)
        mask = torch.tensor(row.response_mask)
        names["prompts"].append(prompts)
        names["responses"].append(responses)
        names["input_ids"].append(torch.cat([prompts, responses]))
        names["position_ids"].append(torch.arange(len(prompts) + len(responses)))
        names["response_mask"].append(mask)
        names["loss_mask"].append(mask)
    names |= {name: list(values) for name, values in (per_token or {}).items()}
    facts = [
        {"step": row.step, "benchmark_spec": row.benchmark_spec, "generations": list(row.generations)} for row in rows
    ]
    content = {name: torch.nested.as_nested_tensor(values, layout=torch.jagged) for name, values in names.items()}
    content["uid"] = NonTensorStack(*(row.uid for row in rows))
    content["session_id"] = NonTensorStack(*(row.session_id for row in rows))
    content["extra_fields"] = NonTensorStack(*facts)
    return TensorDict(content, batch_size=[len(rows)])
