"""A run's checkpoints as its driver sees them: all ranks, the position in the data and our counters in one step."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.identity import LoraIdentity, ModelIdentity, RunIdentity
from atlas_rl.checkpoint.layout import step_of
from atlas_rl.checkpoint.loading import load_run
from atlas_rl.checkpoint.rng import capture_rng, restore_rng
from atlas_rl.checkpoint.state import RunState
from atlas_rl.reporting.manifest import RUN_FILE, read_manifest

if TYPE_CHECKING:
    from atlas_rl.training.trainer import AtlasTrainer

_FINGERPRINTED = {"actor": "actor_rollout_ref.model.path", "critic": "critic.model.path"}


class Checkpoints:
    """Saves and restores the trainer; nobody else writes its folder."""

    def __init__(self, trainer: "AtlasTrainer") -> None:
        """Take the folder and remove what a killed process left half-written.

        Raises:
            ConfigError: another process holds the folder.
        """
        self._trainer = trainer
        manifest = read_manifest(trainer.atlas.run.folder / RUN_FILE)
        self._identity = RunIdentity(
            run_id=trainer.atlas.run.id,
            models={name: self._model(name, manifest.model_fingerprints) for name in _FINGERPRINTED},
        )
        self._committer = StepCommitter(
            Path(trainer.config.trainer.default_local_dir).absolute(),
            identity=self._identity,
            code_version="unknown" if manifest.git is None else manifest.git.commit,
            anchor_every=trainer.atlas.checkpoint.anchor_every,
        )
        for group in self._groups.values():
            group.prepare_to_save()

    def _model(self, name: str, fingerprints: Mapping[str, str]) -> ModelIdentity:
        config = self._trainer.config
        model = config.actor_rollout_ref.model if name == "actor" else config.critic.model
        lora = None
        if model.lora_rank > 0:
            lora = LoraIdentity(
                rank=model.lora_rank, alpha=model.lora_alpha, target_modules=tuple(model.target_modules)
            )
        return ModelIdentity(
            world_size=config.trainer.nnodes * config.trainer.n_gpus_per_node,
            base_fingerprint=fingerprints[_FINGERPRINTED[name]],
            lora=lora,
        )

    @property
    def _groups(self) -> dict[str, Any]:
        return {"actor": self._trainer.actor_rollout_wg, "critic": self._trainer.critic_wg}

    def save(self) -> dict[str, float]:
        """Copy the state of every rank, and let the files be written while training goes on.

        Returns:
            Seconds for which training stood still, and bytes of the ranks' files.

        Raises:
            TrainingError: the step before could not be written.
        """
        trainer = self._trainer
        partial = self._committer.begin(trainer.global_steps)
        costs = [cost for group in self._groups.values() for cost in group.save_step(str(partial))]
        kl_controller = trainer.kl_ctrl_in_reward if trainer.config.algorithm.use_kl_in_reward else None
        self._committer.commit(
            partial,
            RunState(
                global_step=trainer.global_steps,
                epoch=trainer.global_steps // trainer.steps_per_epoch,
                actor_updates=trainer.actor_updates,
                critic_updates=trainer.critic_updates,
                kl_coefficient=None if kl_controller is None else float(kl_controller.value),
                dataloader=trainer.train_dataloader.state_dict(),
                rng=capture_rng(),
            ),
        )
        return {
            "checkpoint/copy_seconds_max": max(cost.copy_seconds for cost in costs),
            "checkpoint/wait_seconds_max": max(cost.wait_seconds for cost in costs),
            "checkpoint/bytes": float(sum(cost.num_bytes for cost in costs)),
        }

    def restore(self) -> int:
        """Put the newest step back into every rank and the trainer; the step, or 0 if there is none.

        Raises:
            TrainingError: the newest step is damaged.
            ConfigError: it is of another run, model, adapter or world size.
        """
        step = self._committer.last_step()
        if step is None:
            return 0
        trainer = self._trainer
        run = load_run(step, expect=self._identity)
        for name, group in self._groups.items():
            group.load_step(str(step), self._identity.models[name])
        trainer.actor_updates, trainer.critic_updates = run.actor_updates, run.critic_updates
        if run.kl_coefficient is not None:
            trainer.kl_ctrl_in_reward.value = run.kl_coefficient
        trainer.train_dataloader.load_state_dict(run.dataloader)
        restore_rng(run.rng)
        return step_of(step)

    def close(self) -> None:
        """Wait until the last step is on disk.

        Raises:
            TrainingError: it could not be written.
        """
        for group in self._groups.values():
            group.finish_saving()
        self._committer.close()
