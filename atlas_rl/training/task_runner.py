"""Runs one training job in this process: Ray, TransferQueue, trainer, agent loop."""

from typing import Any

import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

from atlas_rl.training.config import AtlasConfig
from atlas_rl.training.console import RunConsole
from atlas_rl.training.rollout import AtlasAgentLoopManager
from atlas_rl.training.trainer import AtlasTrainer


def start_ray(config: Any) -> None:
    """Start or join Ray with verl's runtime environment, the run's own and ``ray_kwargs.ray_init``."""
    if ray.is_initialized():
        return
    given = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    assert isinstance(given, dict)
    own = given.pop("runtime_env", None) or {}
    environment = get_ppo_ray_runtime_env(config)
    environment["env_vars"]["TRANSFER_QUEUE_ENABLE"] = "1"
    environment["env_vars"].update(own.pop("env_vars", {}))
    environment.update({key: value for key, value in own.items() if value is not None})
    ray.init(**given, runtime_env=environment)


def train(config: Any, atlas: AtlasConfig, console: RunConsole) -> None:
    """Train, and close what was opened whatever happens.

    verl runs its task in one more actor; here the driver is the task, which saves a process and its imports.
    """
    start_ray(config)
    config.transfer_queue.enable = True
    OmegaConf.resolve(config)
    tq.init(config.transfer_queue)
    try:
        trainer = AtlasTrainer(config, atlas, console)
        trainer.init()
        trainer.fit(
            AtlasAgentLoopManager.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
        )
    finally:
        tq.close()
        ray.shutdown()
