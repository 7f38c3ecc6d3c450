"""Which rows a model's update reads, and how many of its optimizer's steps were made."""

import logging
from dataclasses import dataclass
from typing import Any

import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from atlas_rl.training.mini_batches import fill_mini_batches

logger = logging.getLogger(__name__)

APPLIED = "applied_fraction"
"""Metric of an engine: 1.0 for a mini-batch whose step was made, 0.0 for one without a token or whose gradient was not
finite; verl takes the mean over the mini-batches."""


@dataclass(frozen=True, slots=True)
class Update:
    """One model's update in one step."""

    batch: KVBatchMeta
    """Rows to train on: every mini-batch of them has a token to learn from."""
    num_due: int
    """Optimizer steps that the whole batch stands for."""
    num_planned: int
    """Optimizer steps of ``batch``; fewer only where rows with a token are fewer than mini-batches."""

    def count(self, model: str, metrics: dict[str, Any], step: int) -> int:
        """Say how many optimizer steps were made, and of the others, why not.

        Args:
            model: ``actor`` or ``critic``.
            metrics: The step's, with those of the update if there was one; ``train/MODEL_updates_skipped`` is added.
            step: For the warning.
        """
        made = round(metrics[f"{model}/{APPLIED}"] * self.num_planned) if self.num_planned else 0
        if self.num_planned < self.num_due:
            logger.warning(
                "step %s: %s of %s updates of the %s had no token to learn from and were left out",
                step, self.num_due - self.num_planned, self.num_due, model,
            )  # fmt: skip
        if made < self.num_planned:
            logger.warning(
                "step %s: %s of %s updates of the %s gave no finite gradient and were left out",
                step, self.num_planned - made, self.num_due, model,
            )  # fmt: skip
        metrics[f"train/{model}_updates_skipped"] = self.num_due - made
        return made


def plan_update(batch: KVBatchMeta, group: Any, mesh: str, model: Any, rows_per_question: int) -> Update:
    """Choose and order the rows of an update so that each mini-batch has a token of ``response_mask``.

    Args:
        batch: In verl's order, ``response_mask`` holding the tokens that the loss will read.
        group: The model's worker group.
        mesh: How verl calls the group's ranks that each get their own rows.
        model: verl's configuration of the model.
        rows_per_question: ``actor_rollout_ref.rollout.n``; verl counts mini-batches in questions.
    """
    if mesh not in group._dispatch_info:
        group._dispatch_info[mesh] = group._query_dispatch_info(mesh)
    num_ranks = max(group._dispatch_info[mesh]) + 1
    fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
    mini_batch_size = model.ppo_mini_batch_size * rows_per_question
    rows = fill_mini_batches([bool(row.any()) for row in fields["response_mask"].unbind()], mini_batch_size, num_ranks)
    num_due = len(batch.keys) // mini_batch_size * model.ppo_epochs
    return Update(
        batch=batch.select_keys([batch.keys[place] for place in rows.places]),
        num_due=int(num_due),
        num_planned=int(num_due - rows.num_left_out * model.ppo_epochs),
    )


def put(batch: KVBatchMeta, fields: dict[str, Any]) -> KVBatchMeta:
    """Store fields of a batch; only the batch that comes back knows of them."""
    stored = tq.kv_batch_put(
        keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
    )
    stored.extra_info.update(batch.extra_info)
    return stored


def put_masks(batch: KVBatchMeta, source: str) -> KVBatchMeta:
    """Let ``source`` be the mask that losses read; verl reads two fields of the same content."""
    mask = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[source])[source]
    return put(batch, {"response_mask": mask, "loss_mask": mask})
