"""Validation: every question once, read back from the stored records."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import transfer_queue as tq
from verl.utils import tensordict_utils as tu

from atlas_rl.errors import TrainingError
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.reporting.views import validation_views, write_val_dump

if TYPE_CHECKING:
    from atlas_rl.training.trainer import AtlasTrainer


class Validation:
    """One pass over the validation set under the current weights."""

    def __init__(self, trainer: "AtlasTrainer") -> None:
        self._trainer = trainer
        self._step = trainer.global_steps

    def run(self) -> dict[str, float]:
        """Sample, store, and summarise; figures come from the store, not from memory."""
        expected = sum(self._sample(batch) for batch in self._trainer.val_dataloader)
        attempt = self._trainer.atlas.run.attempt_id
        folder = self._trainer.atlas.run.folder / "val" / f"step_{self._step}"
        rows = [trajectory for trajectory in TrajectoryStore(folder) if trajectory.attempt_id == attempt]
        if len(rows) != expected:
            raise TrainingError(
                f"validation at step {self._step}: {len(rows)} of {expected} trajectories in {folder}; an episode "
                "raised instead of recording its fault: its traceback is in the run's log"
            )
        self._dump(rows)
        return validation_views(rows)

    def _sample(self, columns: dict[str, Any]) -> int:
        """Run one batch of questions and return how many episodes it must give."""
        trainer = self._trainer
        columns["uid"] = trainer.uids("val", [info["question_id"] for info in columns["extra_info"]])
        batch = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(batch, "global_steps", self._step)
        tu.assign_non_tensor_data(batch, "validate", True)
        uids = list(batch["uid"])
        tags = [{"is_prompt": True, "status": "pending", "global_steps": self._step} for _ in uids]
        tq.kv_batch_put(keys=uids, partition_id="val", tags=tags)
        trainer.agent_loop_manager.generate_sequences(batch)
        finished, _ = trainer.replay_buffer.sample(global_steps=self._step, partition_id="val", batch_size=len(uids))
        tq.kv_clear(keys=finished.keys, partition_id="val")
        return len(uids) * int(trainer.config.actor_rollout_ref.rollout.val_kwargs.n)

    def _dump(self, rows: list[Trajectory]) -> None:
        tokenizer = self._trainer.tokenizer

        def text(token_ids: Sequence[int]) -> str:
            decoded: str = tokenizer.decode(list(token_ids), skip_special_tokens=False)
            return decoded

        write_val_dump(
            self._trainer.atlas.run.folder / "val_dumps",
            self._step,
            ((row, text(row.prompt_ids), text(row.response_ids)) for row in rows),
        )
