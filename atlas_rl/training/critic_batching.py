"""The critic's batches are split as its own keys say.

verl's V1 trainer gives the critic's engine one number for both token budgets, from a key that its YAML does not list,
and reads none of the critic's other batching keys.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from verl.trainer.ppo.v1 import trainer_base

from atlas_rl.errors import TrainingError


def set_critic_batching(engine: Any, critic: Any) -> None:
    """Write the ``critic`` node's batching keys into the engine configuration that its worker is built from.

    Args:
        engine: verl's ``EngineConfig`` of the critic; ``infer_*`` is what the pass that computes values reads.
        critic: The resolved ``critic`` node.
    """
    engine.use_dynamic_bsz = critic.use_dynamic_bsz
    engine.max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu
    engine.infer_max_token_len_per_gpu = critic.forward_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = critic.ppo_micro_batch_size_per_gpu
    engine.infer_micro_batch_size_per_gpu = critic.forward_micro_batch_size_per_gpu


@contextmanager
def critic_batching(critic: Any) -> Iterator[None]:
    """While the trainer sets itself up: the critic's worker gets the budgets of the ``critic`` node.

    Raises:
        TrainingError: the trainer built no critic's worker, so its budgets are not known.
    """
    plain = trainer_base.TrainingWorkerConfig
    built: list[str] = []

    def with_batching(*arguments: Any, **facts: Any) -> Any:
        worker = plain(*arguments, **facts)
        set_critic_batching(worker.engine_config, critic)
        built.append(worker.model_type)
        return worker

    # verl builds this object, only this one by this name, between its own budgets and the start of the workers, and
    # offers no other place to look.
    trainer_base.TrainingWorkerConfig = with_batching
    try:
        yield
    finally:
        trainer_base.TrainingWorkerConfig = plain
    if built != ["value_model"]:
        raise TrainingError(
            f"verl built {built or 'nothing'} where the critic's worker was expected, so the batching keys of `critic` "
            "did not reach it; use verl 0.9.1"
        )
