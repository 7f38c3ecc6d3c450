"""verl's worker classes with this project's engines registered and a process group that a CPU accepts."""

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_name
from verl.workers import engine_workers
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

import atlas_rl.training.engines  # noqa: F401  (registers the engines in the process that builds them)


def _join_process_group() -> None:
    """Join torch's process group first: verl would ask for "cpu:gloo,cpu:gloo", which torch refuses."""
    if get_device_name() == "cpu" and not torch.distributed.is_initialized():
        engine_workers.initialize_global_process_group_ray(backend="cpu:gloo")


class AtlasTrainingWorker(TrainingWorker):  # type: ignore[misc]
    """One model with its optimizer: the critic, and the actor inside AtlasActorWorker."""

    def __init__(self, config: object) -> None:
        _join_process_group()
        super().__init__(config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def trainable_digests(self) -> dict[str, str]:
        """Sha256 of every trainable tensor of this rank, by name."""
        digests: dict[str, str] = self.engine.trainable_digests()
        return digests


class AtlasActorWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """The actor, its rollout engine's adapter and, without LoRA, the reference model."""

    actor_worker_cls = AtlasTrainingWorker
    ref_worker_cls = AtlasTrainingWorker

    def __init__(self, *args: object, **kwargs: object) -> None:
        _join_process_group()
        super().__init__(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def trainable_digests(self) -> dict[str, str]:
        """Sha256 of every trainable tensor of the actor on this rank, by name."""
        digests: dict[str, str] = self.actor.engine.trainable_digests()
        return digests
