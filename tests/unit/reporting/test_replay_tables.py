"""The tables of a replay."""

import csv
from pathlib import Path

from record_builders import trajectory
from replay_runs import earned, rows, stored_run

from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.reporting.replay import ComparedRow, Replay
from atlas_rl.reporting.replay_run import replay_store
from atlas_rl.reporting.replay_tables import (
    COMPARISON_COLUMNS,
    SUMMARY_COLUMNS,
    comparison_rows,
    summarise,
    summary_rows,
    write_csv,
)
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.potentials import ZERO


def compared(folder: Path) -> list[ComparedRow]:
    fault = earned(trajectory("f", explores=2, correct=False, reason=TerminalReason.INFRASTRUCTURE_ERROR))
    plan = Replay(reward=RewardConfig(), potential=ZERO, run_id=None, wants_rows=True)
    run = stored_run(folder, *rows(3), fault, *rows(2, global_steps=2))
    return [row for shard in replay_store(run, plan, num_processes=1) for row in shard.rows]


def test_the_summary_averages_the_rows_without_a_fault_by_partition_and_step(tmp_path: Path) -> None:
    step_1, step_2 = (
        dict(zip(SUMMARY_COLUMNS, row, strict=True)) for row in summary_rows(summarise(compared(tmp_path)))
    )
    assert {name: step_1[name] for name in ("partition", "step", "rows", "infrastructure_errors", "changed")} == {
        "partition": "train", "step": 1, "rows": 4, "infrastructure_errors": 1, "changed": 2,
    }  # fmt: skip
    #                                 u0      u1           u2
    assert step_1["old_objective"] == (1.0 + -0.02000001 + 0.95999998) / 3
    assert step_1["new_objective"] == (1.0 + -0.01 + 0.98) / 3
    assert (step_2["rows"], step_2["infrastructure_errors"], step_2["new_utility"]) == (2, 0, (1.0 - 0.01) / 2)


def test_a_mean_over_nothing_is_empty(tmp_path: Path) -> None:
    only_fault = [row for row in compared(tmp_path) if row.key.uid == "f"]
    assert summary_rows(summarise(only_fault)) == [("train", 1, 1, 1, 0, *[""] * 8)]


def test_floats_of_the_comparison_read_back_to_the_same_bits(tmp_path: Path) -> None:
    found = compared(tmp_path / "run")
    write_csv(tmp_path / "c.csv", COMPARISON_COLUMNS, comparison_rows(found))
    with (tmp_path / "c.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [(row["uid"], float(row["old_objective"]), float(row["new_utility"]), row["equal"]) for row in read] == [
        (row.key.uid, row.old.objective, row.new.utility, str(int(row.is_equal))) for row in found
    ]
    assert read[2]["cost_total"] == "0.0000002"
    assert read[3]["terminal_reason"] == "infrastructure_error"


def test_text_that_utf8_cannot_spell_travels_as_an_escape(tmp_path: Path) -> None:
    write_csv(tmp_path / "c.csv", ["a"], [["\ud83d é"]])
    assert (tmp_path / "c.csv").read_text("utf-8") == "a\n\\ud83d é\n"
