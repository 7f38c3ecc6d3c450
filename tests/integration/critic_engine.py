"""Sets verl's trainer up to where it would start its workers, and prints as JSON what the critic's would be built from.

Usage: critic_engine.py plain|ours key=value ...
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.workers.engine.utils import prepare_micro_batches

from atlas_rl.cli.composition import compose
from atlas_rl.training.trainer import AtlasTrainer

ROW_TOKENS = (10, 20, 30, 40, 10, 20, 30, 40)


class WorkersWouldStart(Exception):
    """The trainer has said what its workers are built from."""


class OnePool:
    """A pool of no machines."""

    def __init__(self) -> None:
        self.resource_pool_dict = {"all": "pool"}

    def create_resource_pool(self) -> None:
        """Nothing to reserve."""

    def get_resource_pool(self, role: Role) -> str:
        """The one for every role."""
        return "pool"


def critic_worker(trainer_class: type[PPOTrainerSync], config: Any) -> Any:
    """The ``TrainingWorkerConfig`` with which the trainer's own set-up would start the critic's worker."""
    trainer = object.__new__(trainer_class)
    trainer.config, trainer.use_critic, trainer.use_reference_policy = config, True, False
    trainer.resource_pool_manager = OnePool()
    trainer.role_worker_mapping = {Role.ActorRollout: object, Role.Critic: object}
    for name in ("_init_tokenizer", "_init_dataloader", "_init_dump_executor", "_init_resource_pool_mgr"):
        setattr(trainer, name, lambda: None)
    asked: dict[Any, Any] = {}

    def start(class_dict: dict[str, Any]) -> None:
        asked.update(class_dict)
        raise WorkersWouldStart

    trainer_base.create_colocated_worker_cls = start
    try:
        trainer._setup()
    except WorkersWouldStart:
        return asked[str(Role.Critic)].kwargs["config"]
    raise AssertionError("the workers were not asked for")


def micro_batches(engine: Any, tokens: int | None, rows: int | None) -> list[list[int]]:
    """Row lengths of each micro-batch, as verl splits a batch for this engine."""
    ids = torch.nested.as_nested_tensor([torch.zeros(n, dtype=torch.long) for n in ROW_TOKENS], layout=torch.jagged)
    facts = {"use_dynamic_bsz": engine.use_dynamic_bsz, "max_token_len_per_gpu": tokens, "sp_size": 1}
    batch = tu.get_tensordict({"input_ids": ids}, {**facts, "micro_batch_size_per_gpu": rows})
    return [part["input_ids"].offsets().diff().tolist() for part in prepare_micro_batches(batch)[0]]


def main() -> None:
    """Print the engine's budgets and how it would split a batch for its update and for its values."""
    trainer_class: Callable[..., Any] = {"plain": PPOTrainerSync, "ours": AtlasTrainer}[sys.argv[1]]
    (config,) = compose(sys.argv[2:])
    before = trainer_base.TrainingWorkerConfig
    worker = critic_worker(trainer_class, config)
    engine = worker.engine_config
    update, values = engine.max_token_len_per_gpu, engine.infer_max_token_len_per_gpu
    print(
        json.dumps(
            {
                "model_type": worker.model_type,
                "dynamic": engine.use_dynamic_bsz,
                "tokens": [update, values],
                "rows": [engine.micro_batch_size_per_gpu, engine.infer_micro_batch_size_per_gpu],
                "clip": worker.optimizer_config.clip_grad,
                "update": micro_batches(engine, update, engine.micro_batch_size_per_gpu),
                "values": micro_batches(engine, values, engine.infer_micro_batch_size_per_gpu),
                "restored": trainer_base.TrainingWorkerConfig is before,
            }
        )
    )


if __name__ == "__main__":
    main()
