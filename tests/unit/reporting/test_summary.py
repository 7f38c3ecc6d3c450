"""The summary comes from the stored records alone."""

from contextlib import closing
from math import sqrt
from pathlib import Path

import pytest
from record_builders import trajectory

from atlas_rl.errors import RecordError
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import Partition, TerminalReason
from atlas_rl.reporting.metrics import MetricsLog
from atlas_rl.reporting.summary import Estimate, Validation, summarise_run


def store(folder: Path, *rows: Trajectory) -> Path:
    with TrajectoryWriter(folder, "w") as writer:
        for row in rows:
            writer.append(row)
    return writer.path


def validated(step: int, question_id: str, utility: float, attempt_id: int = 0) -> Trajectory:
    return trajectory(
        f"{question_id}-{step}",
        question_id=question_id,
        global_steps=step,
        attempt_id=attempt_id,
        partition=Partition.VAL,
        reward={"utility": utility},
    )


def test_validations_are_in_order_with_standard_errors_and_a_paired_gain(tmp_path: Path) -> None:
    #                                                 q0   q1   q2    q3
    for step, utilities in {10: (0.5, 1.0, 1.0, None), 0: (0.0, 0.0, 1.0, 9.0), 5: (0.0, 0.0, 0.0, 0.0)}.items():
        rows = [validated(step, f"q{place}", value) for place, value in enumerate(utilities) if value is not None]
        store(tmp_path / "val" / f"step_{step}", *rows)
    summary = summarise_run(tmp_path)
    figures = [
        (one.step, one.utility.count, one.utility.mean, one.utility.standard_error) for one in summary.validations
    ]
    # Sample variances: 19 of 0 0 1 9 around 2.5, and 1/12 of 0.5 1 1.
    assert figures == [
        (0, 4, 2.5, pytest.approx(sqrt(19) / 2)),
        (5, 4, 0.0, 0.0),
        (10, 3, pytest.approx(5 / 6), pytest.approx(1 / 6)),
    ]
    # Differences 0.5 1 0 of q0 q1 q2: mean 0.5, sample variance 1/4.
    gain = summary.utility_gain
    assert gain is not None
    assert (gain.count, gain.mean, gain.standard_error) == pytest.approx((3, 0.5, 0.5 / sqrt(3)))


def test_faults_are_counted_apart_and_violations_everywhere(tmp_path: Path) -> None:
    fault = trajectory("f", reason=TerminalReason.INFRASTRUCTURE_ERROR, reward={"utility": 50.0})
    violation = trajectory("v", reason=TerminalReason.NO_CALL, reward={"protocol_violations": 1, "utility": 0.0})
    store(tmp_path / "val" / "step_1", fault, violation)
    store(tmp_path / "train" / "step_1", violation)
    summary = summarise_run(tmp_path)
    assert summary.protocol_violations == 2
    assert summary.validations == (
        Validation(step=1, utility=Estimate(mean=0.0, standard_error=None, count=1), infrastructure_errors=1),
    )
    assert summary.utility_gain is None


def test_a_step_drawn_again_by_a_resume_counts_once(tmp_path: Path) -> None:
    first = [trajectory(f"a{step}", global_steps=step) for step in (1, 2, 3)]
    again = [trajectory(f"b{step}", global_steps=step, attempt_id=1) for step in (3, 4)]
    store(tmp_path / "train", *first)
    store(tmp_path / "train", *again)
    store(tmp_path / "val", validated(3, "q0", 0.0), validated(3, "q0", 1.0, attempt_id=1))
    summary = summarise_run(tmp_path)
    assert (summary.num_training_steps, summary.num_training_episodes, summary.num_superseded_episodes) == (4, 4, 2)
    assert [one.utility.mean for one in summary.validations] == [1.0]


def test_the_largest_value_of_each_invariant_is_read_from_the_metrics(tmp_path: Path) -> None:
    with closing(MetricsLog(tmp_path / "metrics.jsonl")) as log:
        log.write(1, {"reward/mapping_sum_error_max": 0.0, "reward/decomposition_error_max": float("nan"), "loss": 4})
        log.write(2, {"reward/mapping_sum_error_max": 2.0, "reward/decomposition_error_max": 0.0})
        log.write(3, {"reward/mapping_sum_error_max": 1.0, "protocol/violations_in_batch": 0})
    assert summarise_run(tmp_path).invariant_max == {
        "reward/mapping_sum_error_max": 2.0,
        "reward/decomposition_error_max": None,
        "protocol/violations_in_batch": 0,
    }


def test_what_a_kill_cut_short_is_reported(tmp_path: Path) -> None:
    shard = store(tmp_path / "train", trajectory("a"), trajectory("b"))
    shard.write_bytes(shard.read_bytes()[:-100])
    with closing(MetricsLog(tmp_path / "metrics.jsonl")) as log:
        log.write(1, {"a": 1})
    (tmp_path / "metrics.jsonl").write_bytes((tmp_path / "metrics.jsonl").read_bytes()[:-5])
    summary = summarise_run(tmp_path)
    assert summary.num_training_episodes == 1
    assert [str(shard) in summary.torn[0], summary.torn[1]] == [
        True,
        f"{tmp_path}/metrics.jsonl: line 1 is cut short",
    ]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such folder; give artifacts/RUN"):
        summarise_run(tmp_path / "missing")
