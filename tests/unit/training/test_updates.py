"""How many of a step's updates were made, and a batch whose mini-batches lack tokens."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transfer_queue import KVBatchMeta

from atlas_rl.training import updates
from atlas_rl.training.updates import Update, plan_update

CRITIC = SimpleNamespace(ppo_mini_batch_size=1, ppo_epochs=3)


def batch(masks: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> KVBatchMeta:
    keys = [f"u{place}_0_0" for place in range(len(masks))]
    mask = torch.nested.as_nested_tensor([torch.tensor(row) for row in masks], layout=torch.jagged)

    def stored(keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        assert (keys, partition_id, select_fields) == (list(made.keys), "train", ["response_mask"])
        return {"response_mask": mask}

    monkeypatch.setattr(updates.tq, "kv_batch_get", stored)
    made = KVBatchMeta(keys=keys, tags=[{"place": place} for place in range(len(masks))], partition_id="train")
    made.extra_info["temperature"] = 1.0
    return made


def group(num_ranks: int = 1) -> Any:
    """Ranks of a worker group, asked for when they are not known yet."""
    return SimpleNamespace(_dispatch_info={}, _query_dispatch_info=lambda mesh: list(range(num_ranks)))


def test_a_full_batch_is_trained_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = batch([[1, 0], [0, 1], [1], [1, 1]], monkeypatch)
    update = plan_update(whole, group(), "train", CRITIC, rows_per_question=2)
    assert (update.batch.keys, update.num_due, update.num_planned) == (whole.keys, 6, 6)
    assert update.batch.extra_info == {"temperature": 1.0}


def test_rows_with_tokens_are_spread_over_the_mini_batches_with_their_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    update = plan_update(batch([[1], [1], [0, 0], [0]], monkeypatch), group(), "train", CRITIC, rows_per_question=2)
    assert update.batch.keys == ["u0_0_0", "u2_0_0", "u1_0_0", "u3_0_0"]
    assert [tag["place"] for tag in update.batch.tags] == [0, 2, 1, 3]
    assert (update.num_due, update.num_planned) == (6, 6)


def test_a_mini_batch_that_must_stay_empty_is_no_update(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    update = plan_update(batch([[0], [0], [1], [0]], monkeypatch), group(), "train", CRITIC, rows_per_question=2)
    assert (update.batch.keys, update.num_due, update.num_planned) == (["u2_0_0", "u3_0_0"], 6, 3)
    metrics = {"critic/applied_fraction": 1.0}
    with caplog.at_level(logging.WARNING):
        assert update.count("critic", metrics, step=7) == 3
    assert metrics["train/critic_updates_skipped"] == 3
    assert caplog.messages == ["step 7: 3 of 6 updates of the critic had no token to learn from and were left out"]


def test_a_batch_without_tokens_is_no_update_and_needs_no_metric_of_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    update = plan_update(batch([[0], [0, 0]], monkeypatch), group(2), "actor", CRITIC, rows_per_question=2)
    metrics: dict[str, Any] = {}
    with caplog.at_level(logging.WARNING):
        assert update.count("actor", metrics, step=1) == 0
    assert metrics == {"train/actor_updates_skipped": 3}
    assert len(caplog.messages) == 1


def test_updates_whose_gradient_was_not_finite_are_counted_exactly(caplog: pytest.LogCaptureFixture) -> None:
    metrics = {"actor/applied_fraction": sum([1.0] * 10 + [0.0]) / 11}
    with caplog.at_level(logging.WARNING):
        made = Update(batch=KVBatchMeta(), num_due=11, num_planned=11).count("actor", metrics, step=2)
    assert (made, metrics["train/actor_updates_skipped"]) == (10, 1)
    assert caplog.messages == ["step 2: 1 of 11 updates of the actor gave no finite gradient and were left out"]
