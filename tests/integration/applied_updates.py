"""Trains a tiny actor on a batch with a mini-batch that has no token to learn from, and says what became of it.

Usage: applied_updates.py MODEL_DIR
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from verl.utils import tensordict_utils as tu

from atlas_rl.cli.composition import compose
from atlas_rl.models.tiny import build_tiny_model
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows
from atlas_rl.training.chosen_tokens import POLICY_KEY
from atlas_rl.training.standalone import ActorRow, actor_batch, standalone_actor


def row(place: int) -> ActorRow:
    draw = random.Random(place)
    return ActorRow(
        uid=f"row{place}", session_id=0, prompt_ids=[draw.randrange(50) for _ in range(4)],
        response_ids=[draw.randrange(50) for _ in range(6)], response_mask=[1] * 6, benchmark_spec="gsm8k",
        generations=[(0, 6, None)],
    )  # fmt: skip


def update(actor: Any, masks: list[list[int]]) -> dict[str, Any]:
    """Mini-batches of one row each."""
    rows = [row(place) for place in range(len(masks))]
    fields = {
        "old_log_probs": [torch.full((6,), -3.0)] * len(rows), "advantages": [torch.ones(6)] * len(rows),
        "response_mask": [torch.tensor(mask) for mask in masks],
    }  # fmt: skip
    batch = actor_batch(rows, fields)
    batch["loss_mask"] = batch["response_mask"]
    tu.assign_non_tensor(
        batch, compute_loss=False, calculate_entropy=False, temperature=1.0, global_batch_size=1, mini_batch_size=1,
        epochs=1, seed=1, dataloader_kwargs={"shuffle": False},
        **{POLICY_KEY: {"logprobs": "full_vocab", "chunk_tokens": 8, "max_text_tokens": None}},
    )  # fmt: skip
    metrics: dict[str, Any] = tu.get(actor.update_actor(batch), "metrics")
    return metrics


def main() -> None:
    torch.manual_seed(0)
    folder = Path(sys.argv[1])
    build_tiny_model(folder, benchmark=load_benchmark("urn"), rows=make_rows(UrnConfig(), 8, 0, "q"))
    [config] = compose(
        [
            "experiment=urn_demo", f"actor_rollout_ref.model.path={folder}", "data.train_files=x", "data.val_files=x",
            "atlas.run.id=actor", "actor_rollout_ref.actor.optim.total_training_steps=4",
        ]
    )  # fmt: skip
    with standalone_actor(config) as actor:
        before = actor.trainable_digests()
        empty = update(actor, [[0] * 6])
        after_empty = actor.trainable_digests()
        mixed = update(actor, [[1] * 6, [0] * 6, [1] * 6])
        after_mixed = actor.trainable_digests()
    facts = {
        "empty": empty["applied_fraction"], "empty_moved": before != after_empty,
        "mixed": mixed["applied_fraction"], "mixed_moved": after_empty != after_mixed,
        "norms_finite": [bool(torch.tensor(norm).isfinite()) for norm in mixed["grad_norm"]],
    }  # fmt: skip
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
