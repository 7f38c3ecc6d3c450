"""Runs one training job in this process: Ray, TransferQueue, trainer, agent loop."""

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

from atlas_rl.errors import ConfigError
from atlas_rl.training.config import AtlasConfig
from atlas_rl.training.console import RunConsole
from atlas_rl.training.memory_check import check_memory
from atlas_rl.training.rollout import AtlasAgentLoopManager
from atlas_rl.training.trainer import AtlasTrainer
from atlas_rl.training.warm_python import EXECUTABLE_VARIABLE, WarmPython, forget_ray_job

_WORKER_MODULES = (
    "atlas_rl.training.workers",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "vllm.v1.engine.core",
    "vllm.v1.structured_output.backend_xgrammar",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.models.llama",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.llama.modeling_llama",
    "ray._private.workers.default_worker",
)
"""What the processes of a job import on their way, besides what this module has imported."""


@contextmanager
def warm_workers(config: Any, atlas: AtlasConfig) -> Iterator[Path | None]:
    """Fork the server that worker processes are forked from, if the run wants it; before Ray, which starts threads."""
    if not atlas.run.warm_workers:
        yield None
        return
    if os.environ.get("RAY_ADDRESS") or config.ray_kwargs.ray_init.get("address"):
        raise ConfigError(
            "atlas.run.warm_workers=true starts a Ray cluster of its own, but RAY_ADDRESS or "
            "ray_kwargs.ray_init.address names one to join; unset it or set atlas.run.warm_workers=false"
        )
    for name in _WORKER_MODULES:
        importlib.import_module(name)
    forget_ray_job()
    with tempfile.TemporaryDirectory(prefix="atlas-") as folder:
        server = WarmPython(Path(folder))
        try:
            yield server.executable
        finally:
            server.close()


def start_ray(config: Any, executable: Path | None) -> None:
    """Start or join Ray with verl's runtime environment, the run's own and ``ray_kwargs.ray_init``."""
    if ray.is_initialized():
        return
    given: Any = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    own = given.pop("runtime_env", None) or {}
    environment = get_ppo_ray_runtime_env(config)
    environment["env_vars"]["TRANSFER_QUEUE_ENABLE"] = "1"
    if executable is not None:
        environment["env_vars"][EXECUTABLE_VARIABLE] = str(executable)
        environment["py_executable"] = str(executable)
    environment["env_vars"].update(own.pop("env_vars", {}))
    environment.update({key: value for key, value in own.items() if value is not None})
    ray.init(**given, runtime_env=environment)


def train(config: Any, atlas: AtlasConfig, console: RunConsole) -> None:
    """Train, and close what was opened whatever happens.

    verl runs its task in one more actor; here the driver is the task, which saves a process and its imports.
    """
    OmegaConf.resolve(config)
    with warm_workers(config, atlas) as executable:
        console.line(f"libraries imported after {console.seconds():.0f} s")
        start_ray(config, executable)
        try:
            tq.init(config.transfer_queue)
            if atlas.memory_check.enabled:
                check_memory(config, atlas, console)
                return
            trainer = AtlasTrainer(config, atlas, console)
            trainer.init()
            console.line(f"models and engine ready after {console.seconds():.0f} s")
            trainer.fit(
                AtlasAgentLoopManager.create(
                    config=config,
                    llm_client=trainer.get_llm_client(),
                    teacher_client=trainer.get_teacher_client(),
                    reward_loop_worker_handles=trainer.get_reward_handles(),
                )
            )
            trainer.close()
        finally:
            console.end_stage()
            try:
                tq.close()
            finally:
                ray.shutdown()
