"""verl's worker classes with this project's engines registered and a process group that a CPU accepts."""

from pathlib import Path

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_name
from verl.workers import engine_workers
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

import atlas_rl.training.engines  # noqa: F401  (registers the engines in the process that builds them)
from atlas_rl.checkpoint.identity import ModelIdentity
from atlas_rl.checkpoint.rank_writer import SaveCost
from atlas_rl.reporting.memory import ModelFacts, RankMemory
from atlas_rl.training.memory_meter import model_facts, process_meter
from atlas_rl.training.packed_rows import PackedRows
from atlas_rl.training.row_comparison import compare_rows


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

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def check_packed_rows(self) -> PackedRows:
        """What rows of one micro-batch do to each other in this model; every rank runs the same rows."""
        return compare_rows(self.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def watch_memory(self) -> ModelFacts:
        """Let the process's meter count what the critic does."""
        process_meter().watch(self.engine, "critic")
        return model_facts(self.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_step(self, partial: str) -> SaveCost:
        """Copy this rank's state and begin to write it into the folder of a begun step."""
        cost: SaveCost = self.engine.save_step(Path(partial))
        return cost

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def load_step(self, step: str, identity: ModelIdentity) -> None:
        """Put a saved step back into this rank."""
        self.engine.load_step(Path(step), identity)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def prepare_to_save(self) -> None:
        """Allocate the host memory of saves."""
        self.engine.prepare_to_save()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def finish_saving(self) -> None:
        """Wait until what was copied is on disk."""
        self.engine.finish_saving()


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

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def check_packed_rows(self) -> PackedRows:
        """What rows of one micro-batch do to each other in the actor; every rank runs the same rows."""
        return compare_rows(self.actor.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def watch_memory(self) -> ModelFacts:
        """Let the process's meter count what the actor does, and a reference model of its own."""
        process_meter().watch(self.actor.engine, "actor")
        if self.ref is not None:
            process_meter().watch(self.ref.engine, "reference")
        return model_facts(self.actor.engine)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def start_memory_stage(self) -> None:
        """Peaks of this rank's process, whichever model causes them, are those from here on."""
        process_meter().start()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)  # type: ignore[untyped-decorator]
    def end_memory_stage(self) -> RankMemory:
        """What the stage needed on this rank; a rank that hangs does not answer."""
        return process_meter().stop(torch.distributed.get_rank())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_step(self, partial: str) -> SaveCost:
        """Copy this rank's state and begin to write it into the folder of a begun step."""
        cost: SaveCost = self.actor.engine.save_step(Path(partial))
        return cost

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def load_step(self, step: str, identity: ModelIdentity) -> None:
        """Put a saved step back into this rank."""
        self.actor.engine.load_step(Path(step), identity)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def prepare_to_save(self) -> None:
        """Allocate the host memory of saves."""
        self.actor.engine.prepare_to_save()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def finish_saving(self) -> None:
        """Wait until what was copied is on disk."""
        self.actor.engine.finish_saving()
