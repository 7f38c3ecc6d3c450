"""Which stored submits a table counts, and which rows it has."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from record_builders import trajectory

from atlas_rl.errors import ConfigError, DataError, RecordError
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import Partition, TerminalReason
from atlas_rl.reporting.potential_counts import Counting, Counts, Question, RunCounts
from atlas_rl.rewards.potential_table import CountedRow

F = "f" * 64


def run(folder: Path, *rows: Trajectory) -> Path:
    with TrajectoryWriter(folder, "w") as writer:
        for row in rows:
            writer.append(row)
    return folder


def counted(folder: Path, *rows: Trajectory, **counting: Any) -> tuple[RunCounts, dict[str, CountedRow]]:
    counts = Counts(Counting(**counting))
    told = counts.add_run(run(folder, *rows))
    return told, {row.question_id: row for row in counts.table()[1]}


def test_a_submit_counts_at_the_prefix_that_it_was_made_after(tmp_path: Path) -> None:
    told, rows = counted(
        tmp_path,
        trajectory("u0", explores=0, correct=False),
        trajectory("u1", explores=2, correct=True),
        trajectory("u2", explores=2, correct=False),
        trajectory("u3", explores=8, correct=True),
        trajectory("u4", explores=1, question_id="q1"),
    )
    assert told[1:6] == (5, 0, 0, 0, 5)
    #                         0  1  2  3  4  5  6  7  8
    assert rows["q0"].right == (0, 0, 1, 0, 0, 0, 0, 0, 1)
    assert rows["q0"].total == (1, 0, 2, 0, 0, 0, 0, 0, 1)
    assert rows["q1"].total == (0, 1, 0, 0, 0, 0, 0, 0, 0)


def test_a_row_without_a_graded_submit_gives_its_question_a_row_and_no_count(tmp_path: Path) -> None:
    told, rows = counted(
        tmp_path,
        trajectory("u0", question_id="q0"),
        trajectory("u1", question_id="q1", reason=TerminalReason.MAX_TURNS, correct=False),
        trajectory("u2", question_id="q2", reason=TerminalReason.INFRASTRUCTURE_ERROR, correct=False),
    )
    assert (told.no_submit, told.submits) == (2, 1)
    assert [sum(rows[name].total) for name in ("q0", "q1", "q2")] == [1, 0, 0]
    assert len(rows["q2"].total) == 9


def test_a_submit_whose_grade_never_came_counts_for_nothing(tmp_path: Path) -> None:
    judged = trajectory("u0")
    fault = judged.episode.model_copy(update={"terminal_reason": TerminalReason.INFRASTRUCTURE_ERROR, "error": "judge"})
    told, _ = counted(tmp_path, judged, trajectory("u1").model_copy(update={"uid": "u0", "episode": fault}))
    assert (told.trajectories, told.submits) == (2, 1)


def test_a_step_that_a_resume_drew_again_counts_once(tmp_path: Path) -> None:
    told, rows = counted(
        tmp_path,
        trajectory("u0", global_steps=1, correct=True),
        trajectory("u1", global_steps=2, correct=True),
        trajectory("u1", global_steps=2, correct=False, attempt_id=1),
        trajectory("u2", global_steps=2, correct=True, partition=Partition.VAL),
    )
    assert (told.superseded, told.submits) == (1, 3)
    assert (rows["q0"].right[2], rows["q0"].total[2]) == (2, 3)


def test_partition_and_first_step_choose_the_submits_but_not_the_questions(tmp_path: Path) -> None:
    rows = (
        trajectory("u0", global_steps=1),
        trajectory("u1", global_steps=5),
        trajectory("u2", global_steps=5, partition=Partition.VAL, question_id="q1"),
    )
    told, found = counted(tmp_path, *rows, partitions=(Partition.TRAIN,), from_step=5)
    assert (told.not_asked_for, told.submits) == (2, 1)
    assert {name: sum(row.total) for name, row in found.items()} == {"q0": 1, "q1": 0}


def test_the_prior_is_what_the_benchmark_did_at_the_prefix(tmp_path: Path) -> None:
    counts = Counts(Counting(strength=Decimal("1.5")))
    counts.add_run(
        run(
            tmp_path,
            trajectory("u0", explores=2, correct=True),
            trajectory("u1", explores=2, correct=False, question_id="q1"),
            trajectory("u2", explores=1, correct=False, question_id="q2", benchmark="omr"),
        )
    )
    header, _ = counts.table()
    assert header.strength == Decimal("1.5")
    assert (header.pools["urn"].right, header.pools["urn"].total) == ((0, 0, 1, *[0] * 6), (0, 0, 2, *[0] * 6))
    assert header.pools["omr"].total == (0, 1, *[0] * 7)
    assert [(one.run_id, one.trajectories, one.submits) for one in header.runs] == [("run-a", 3, 3)]


def test_a_covered_question_has_a_row_without_a_submit(tmp_path: Path) -> None:
    counts = Counts(Counting())
    counts.add_questions([Question("new", "p0", "9" * 64, "urn", 4, "val.parquet")])
    counts.add_run(run(tmp_path, trajectory()))
    rows = {row.question_id: row for row in counts.table()[1]}
    assert rows["new"] == CountedRow("new", "p0", "9" * 64, "urn", (0,) * 5, (0,) * 5)


def test_one_question_has_one_set_of_candidates(tmp_path: Path) -> None:
    counts = Counts(Counting())
    counts.add_questions([Question("q0", "p0", "9" * 64, "urn", 8, "train.parquet")])
    with pytest.raises(DataError) as caught:
        counts.add_run(run(tmp_path / "run", trajectory()))
    assert str(caught.value) == (
        f"question 'q0', permutation 'p0' has candidates {'9' * 64} of 'urn' in train.parquet, but {F} of 'urn' in "
        f"{tmp_path}/run; a table is for one dataset"
    )


def test_a_run_is_counted_once_and_alone(tmp_path: Path) -> None:
    counts = Counts(Counting())
    one = run(tmp_path / "a", trajectory())
    counts.add_run(one)
    with pytest.raises(DataError, match="run 'run-a' was counted already; give each run once"):
        counts.add_run(run(tmp_path / "copy", trajectory()))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no trajectory; give artifacts/RUN, one run at a time"):
        counts.add_run(tmp_path / "empty")
    with pytest.raises(RecordError, match="no such folder"):
        counts.add_run(tmp_path / "none")


def test_a_benchmark_without_a_submit_has_no_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="benchmark 'urn': 1 questions and no counted submit; give a run that submit"):
        counted(tmp_path, trajectory(reason=TerminalReason.MAX_TURNS, correct=False))


@pytest.mark.parametrize("wrong", [{"strength": Decimal(0)}, {"strength": Decimal("NaN")}, {"from_step": -1}])
def test_a_prior_without_weight_and_a_negative_step_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--strength must be a finite number|--from-step must be at least 0"):
        Counting(**wrong)
