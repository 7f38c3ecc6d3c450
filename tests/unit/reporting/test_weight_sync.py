"""What two readings of the rollout prove about its weights."""

from pathlib import Path
from typing import Any

import pytest

from atlas_rl.errors import RecordError, TrainingError
from atlas_rl.reporting.weight_sync import (
    FOLDER,
    Answer,
    Delivery,
    ProbeReading,
    ReplicaReading,
    compare,
    judge,
    read_readings,
    write_reading,
)

OLD = Answer(token_ids=(4, 5, 6), logprobs=(-0.5, -0.25, -1.0))
MOVED = Answer(token_ids=(4, 5, 6), logprobs=(-0.5, -0.25000003, -1.0))
OTHER = Answer(token_ids=(4, 7, 8), logprobs=(-0.5, -0.125, -3.0))


def replica(*answers: Answer, place: int = 0, version: int = 2, adapters: tuple[int, ...] = (1,), cached: Any = 0):
    return ReplicaReading(
        replica=place, weight_version=version, adapter_ids=adapters, num_cached_tokens=cached, answers=answers
    )


def reading(*replicas: ReplicaReading, name: str = "after_step_2", actor: str = "new", **changes: Any) -> ProbeReading:
    values: dict[str, Any] = {
        "run_id": "r", "attempt_id": 0, "name": name, "global_steps": 2, "follows_sync": True,
        "delivery": Delivery.ADAPTER, "actor_updates": 1, "critic_updates": 2, "actor_sha256": actor,
        "critic_sha256": "c", "prompts_sha256": "p", "seconds": 0.5, "replicas": replicas, "comparison": None,
    }  # fmt: skip
    return ProbeReading(**{**values, **changes})


BEFORE = reading(replica(OLD, OLD, version=1), name="after_step_1", actor="old", global_steps=1, actor_updates=0)


def judged(now: ProbeReading, before: ProbeReading | None = BEFORE, tolerance_nats: float = 0.0) -> ProbeReading:
    if before is not None:
        now = now.model_copy(update={"comparison": compare(now, before)})
    judge(now, before, tolerance_nats)
    return now


def test_one_bit_of_one_logprob_is_a_change():
    comparison = judged(reading(replica(OLD, MOVED))).comparison
    assert comparison is not None
    assert (comparison.must_change, comparison.num_tokens, comparison.num_changed_tokens) == (True, 6, 1)
    assert comparison.num_changed_ids == 0
    assert comparison.max_difference_nats == pytest.approx(3e-8, rel=0.01)


def test_the_distance_goes_up_to_the_first_other_token_and_no_further():
    comparison = judged(reading(replica(OLD, OTHER))).comparison
    assert comparison is not None
    assert (comparison.num_changed_tokens, comparison.num_changed_ids) == (2, 2)
    assert comparison.max_difference_nats == 0.125  # the third token follows another prefix: 2 nats that say nothing


def test_an_actor_that_moved_and_a_rollout_that_did_not_stop_the_run():
    with pytest.raises(TrainingError, match=r"step 2, weight-sync probe after_step_2: .*replica 0 .*old weights$"):
        judged(reading(replica(OLD, OLD)))


def test_each_replica_must_have_changed():
    before = reading(replica(OLD), replica(OLD, place=1), name="after_step_1", actor="old", global_steps=1)
    with pytest.raises(TrainingError, match="rollout replica 1 is what it was"):
        judged(reading(replica(MOVED), replica(OLD, place=1)), before)


def test_merged_delivery_names_what_rounding_may_have_lost():
    with pytest.raises(TrainingError, match="below the rounding of the rollout's dtype"):
        judged(reading(replica(OLD, OLD, adapters=()), delivery=Delivery.MERGED))


def test_a_critic_only_step_leaves_every_bit():
    judged(reading(replica(OLD, OLD), actor="old"))
    with pytest.raises(TrainingError, match=r"1 of 6 answer tokens changed since after_step_1, by up to 3e-08 nats"):
        judged(reading(replica(OLD, MOVED), actor="old"))


def test_a_tolerance_lets_logprobs_move_and_a_tie_fall_the_other_way():
    judged(reading(replica(OLD, MOVED), actor="old"), tolerance_nats=1e-6)
    judged(reading(replica(OLD, OTHER), actor="old"), tolerance_nats=0.2)
    with pytest.raises(TrainingError, match="though the actor did not change"):
        judged(reading(replica(OLD, OTHER), actor="old"), tolerance_nats=0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"version": 1}, "replica 0 says that its weights are of step 1"),
        ({"adapters": ()}, "replica 0 holds no adapter"),
        ({"cached": 16}, "replica 0 took 16 prompt tokens from a prefix cache of the weights before"),
    ],
)
def test_a_delivery_that_did_not_arrive_is_seen_without_another_reading(wrong: dict[str, Any], message: str):
    judged(reading(replica(MOVED, MOVED)), None)
    with pytest.raises(TrainingError, match=message):
        judged(reading(replica(MOVED, MOVED, **wrong)), None)


def test_before_a_validation_the_prefix_may_be_cached_and_an_engine_without_a_cache_is_fine():
    judged(reading(replica(OLD, OLD, cached=16, version=1), actor="old", follows_sync=False))
    judged(reading(replica(MOVED, OLD, cached=None)))


def test_readings_of_other_prompts_are_not_compared():
    with pytest.raises(TrainingError, match="other prompts or replicas"):
        compare(reading(replica(OLD, OLD), prompts_sha256="q"), BEFORE)
    with pytest.raises(TrainingError, match="other prompts or replicas"):
        compare(reading(replica(OLD)), BEFORE)


def test_readings_come_back_in_the_order_in_which_they_were_taken(tmp_path: Path):
    names = [
        ("init", 0, 0), ("before_validation_0", 0, 0), ("after_step_2", 2, 0), ("after_step_10", 10, 0),
        ("resume_2", 2, 1), ("before_validation_2", 2, 1), ("after_step_10", 10, 1),
    ]  # fmt: skip
    written = [reading(replica(OLD), name=name, global_steps=step, attempt_id=attempt) for name, step, attempt in names]
    paths = {write_reading(tmp_path, one).name for one in reversed(written)}
    assert len(paths) == len(names)
    assert {"after_step_10.json", "after_step_10.attempt_1.json"} <= paths
    assert read_readings(tmp_path) == written


def test_a_damaged_reading_is_named(tmp_path: Path):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "init.json").write_text("{}")
    with pytest.raises(RecordError, match=r"weight_sync/init\.json"):
        read_readings(tmp_path)
