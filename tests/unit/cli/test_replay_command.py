"""What `atlas-rl replay` and `atlas-rl report call-advantage` print, write and return."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_builders import trajectory
from replay_runs import earned, rows, stored_run
from typer.testing import CliRunner, Result

from atlas_rl.cli import progress as progress_module
from atlas_rl.cli.main import app
from atlas_rl.cli.progress import progress
from atlas_rl.cli.replay_keys import pairs, replay_name, reward_changes
from atlas_rl.errors import ConfigError, RecordError
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import Verdict
from atlas_rl.tasks.benchmark import BENCHMARKS

VERSION_1 = Path(__file__).parents[1] / "records" / "version_1"


def run(*words: Any) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, words)])


def last_line(result: Result) -> str:
    """The last line with its rate, which must be a number, as R."""
    return re.sub(r"rows_per_second=\d+$", "rows_per_second=R", result.stdout.splitlines()[-1])


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_that_replays_prints_one_line_and_writes_nothing(tmp_path: Path) -> None:
    folder = stored_run(tmp_path, *rows(5))
    result = run(folder)
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    assert last_line(result) == "replay: rows=5 equal=5 changed=0 rows_per_second=R"
    assert not (folder / "replay").exists()


def test_a_changed_row_exits_with_1_and_is_listed_in_full_and_in_the_table(tmp_path: Path) -> None:
    broken = [row.model_copy(update={"reward_score": 9.0}) for row in rows(5)]
    folder = stored_run(tmp_path, *broken)
    result = run(folder)
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert lines[:2] == ["changed: run-a train step 1 u0_0_a0", "  reward_score: stored 9.0, new 1.0"]
    assert sum(line.startswith("changed: ") for line in lines) == 3
    assert last_line(result) == "replay: rows=5 equal=0 changed=5 rows_per_second=R"
    found = table(folder / "replay" / "own" / "changed.csv")
    assert [(row["uid"], row["field"], row["stored"]) for row in found] == [
        (f"u{n}", "reward_score", "9.0") for n in range(5)
    ]


def test_another_reward_compares_and_exits_with_0(tmp_path: Path) -> None:
    folder = stored_run(tmp_path, *rows(3), *rows(2, global_steps=2))
    result = run(folder, "--reward", "preset=explore_0.01", "format_score=0.10")
    assert result.exit_code == 0
    assert last_line(result) == "replay: rows=5 equal=0 changed=5 rows_per_second=R"
    shown = [line.split() for line in result.stdout.splitlines()[:3]]
    assert shown[0][:5] == ["partition", "step", "rows", "errors", "changed"]
    assert [line[:5] for line in shown[1:]] == [["train", "1", "3", "0", "3"], ["train", "2", "2", "0", "2"]]
    found = table(folder / "replay" / "format_score=0.10_preset=explore_0.01" / "comparison.csv")
    assert [(row["uid"], row["step"], row["old_final_reward"], row["new_final_reward"]) for row in found] == [
        ("u0", "1", "1.0", "1.1"),
        ("u1", "1", "-0.02000001", "0.09"),
        ("u2", "1", "0.95999998", "1.08"),
        ("u0", "2", "1.0", "1.1"),
        ("u1", "2", "-0.02000001", "0.09"),
    ]


def test_the_tables_go_where_out_says(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "run", *rows(1))
    run(folder, "--reward", "preset=both", "--out", tmp_path / "tables")
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["comparison.csv", "summary.csv"]
    assert not (folder / "replay").exists()


def test_a_run_of_version_1_replays_to_the_same_bits() -> None:
    result = run(VERSION_1)
    assert result.exit_code == 0
    assert last_line(result) == "replay: rows=4 equal=4 changed=0 rows_per_second=R"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--reward", "price=1"], "reward.price is no key of the reward"),
        (["--reward", "preset"], "--reward 'preset' is not KEY=VALUE"),
        (["--reward", "preset=both", "preset=custom"], "--reward gives preset twice, as 'both' and 'custom'"),
        (["--reward", "per_explore=0.1"], "is given beside reward.preset=both, which sets it"),
        (["preset=both"], "preset=both stands behind DIR without --reward; write --reward preset=both"),
        (["--processes", "0"], "--processes must be at least 1, got 0"),
        (["--reward", "preset=[", "x=1"], "--reward preset=[ cannot be read"),
    ],
)
def test_a_word_that_cannot_be_used_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    result = run(stored_run(tmp_path, *rows(1)), *words)
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "no such folder; give artifacts/RUN" in str(run(tmp_path / "x").exception)


def test_a_row_that_cannot_be_scored_stops_the_replay_and_writes_nothing(tmp_path: Path) -> None:
    good, bad = rows(2)
    unlabelled = bad.episode.events[0].model_copy(update={"payload": {"answer": "B"}})
    episode = bad.episode.model_copy(update={"events": (unlabelled, bad.episode.events[1])})
    folder = stored_run(tmp_path, good, bad.model_copy(update={"episode": episode}))
    result = run(folder, "--reward", "preset=both")
    assert "row 1: trajectory 'u1'_0: episode u1_0: payload of event 0 (explore) has is_correct=None" in str(
        result.exception
    )
    assert not (folder / "replay").exists()


# ------------------------------------------------------------------------------------------------ regrading


def judged(row: Trajectory, verdict: Verdict) -> Trajectory:
    """The row with another verdict, and the reward that this verdict earns."""
    return earned(row.model_copy(update={"grade": row.grade.model_copy(update={"verdict": verdict})}))


def test_graders_that_agree_move_nothing(tmp_path: Path) -> None:
    #                                  answers "B", and "B" is right
    folder = stored_run(tmp_path, *rows(3, correct_all=True))
    result = run(folder, "--regrade")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-2] == "regrade: graded=3 asked=1 unjudged=0 moved=0"
    assert table(folder / "replay" / "own" / "verdicts.csv") == []


def test_a_verdict_that_moves_is_reported_and_scored_by(tmp_path: Path) -> None:
    folder = stored_run(tmp_path, *(judged(row, Verdict.WRONG) for row in rows(2)))
    result = run(folder, "--regrade")
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert re.fullmatch(r"moved: run-a u0_0_a0: wrong after 0\.250 s, now correct after 0\.000 s", lines[0])
    assert lines[-2] == "regrade: graded=2 asked=1 unjudged=0 moved=2"
    assert last_line(result) == "replay: rows=2 equal=0 changed=2 rows_per_second=R"
    moved = table(folder / "replay" / "own" / "verdicts.csv")
    assert [(row["uid"], row["old_verdict"], row["new_verdict"], row["old_seconds"]) for row in moved] == [
        ("u0", "wrong", "correct", "0.25"),
        ("u1", "wrong", "correct", "0.25"),
    ]
    changed = {(row["uid"], row["field"], row["new"]) for row in table(folder / "replay" / "own" / "changed.csv")}
    assert ("u1", "acc", "1.0") in changed


def test_an_episode_without_a_submit_is_not_graded(tmp_path: Path) -> None:
    silent = judged(trajectory("s", explores=1, correct=False, reason="max_turns"), Verdict.NO_ANSWER)
    result = run(stored_run(tmp_path, silent), "--regrade")
    assert result.stdout.splitlines()[-2] == "regrade: graded=0 asked=0 unjudged=0 moved=0"


def test_a_grade_without_an_answer_is_refused(tmp_path: Path) -> None:
    silent = judged(trajectory("s", explores=1, correct=False, reason="max_turns"), Verdict.WRONG)
    result = run(stored_run(tmp_path, silent), "--regrade")
    assert isinstance(result.exception, RecordError)
    assert "trajectory 's'_0: grade.verdict=wrong but its events hold no submitted answer" in str(result.exception)


def test_an_unknown_benchmark_can_be_given_as_a_file(tmp_path: Path) -> None:
    folder = stored_run(tmp_path / "run", *rows(1, benchmark="mine"))
    assert "benchmark 'mine' of a row" in str(run(folder, "--regrade").exception)
    own = tmp_path / "mine.yaml"
    own.write_text((BENCHMARKS / "urn.yaml").read_text("utf-8").replace("name: urn\n", "name: mine\n"), "utf-8")
    result = run(folder, "--regrade", "--benchmark", own)
    assert result.stdout.splitlines()[-2] == "regrade: graded=1 asked=1 unjudged=0 moved=0"


# ------------------------------------------------------------------------------------------------ words


def test_a_number_with_a_point_keeps_its_digits() -> None:
    assert reward_changes(["per_explore=0.10", "overlong_from_tokens=12", "utility_per_dollar=null"]) == {
        "per_explore": "0.10",
        "overlong_from_tokens": 12,
        "utility_per_dollar": None,
    }
    assert pairs("--potential", ["table=a=b.parquet"]) == {"table": "a=b.parquet"}


def test_names_of_replays_tell_their_keys_apart() -> None:
    assert replay_name(["b=2", "a=1"]) == replay_name(["a=1", "b=2"]) == "a=1_b=2"
    odd = [
        replay_name([word]) for word in ("potentials={a: 1}", "potentials={a; 1}", "x" * 200 + "=1", "x" * 201 + "=1")
    ]
    assert len(set(odd)) == 4
    assert all(re.fullmatch(r"[A-Za-z0-9._=+-]{1,89}", name) for name in odd)


def test_without_a_terminal_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 9.0, 10.0, 10.0, 11.0])
    monkeypatch.setattr(progress_module, "monotonic", lambda: next(now))
    with progress("replay", 100, "KiB") as advance:
        for count in (10, 20, 30):
            advance(count)
    assert capsys.readouterr() == ("", "replay: 30/100 KiB\n")


def test_the_table_of_calls_is_written_and_summed_up(tmp_path: Path) -> None:
    folder = stored_run(tmp_path, *rows(2)) / "train" / "step_1"
    (first, second) = TrajectoryStore(folder).headers()
    lines = [
        {"row": "u0_0", "record_sha256": first.sha256, "is_fault": False},
        {"row": "u1_0", "record_sha256": second.sha256, "is_fault": True},
        {"row": "u2_0", "record_sha256": None, "is_fault": False},
    ]
    (folder / "manifest.json").write_text(json.dumps({"step": 1, "num_rows": 3, "rows": lines}))
    names = ("raw_advantages", "advantages", "policy_mask")
    np.savez(folder / "tensors.npz", **{f"{row}_0/{name}": np.ones(6) for row in ("u0", "u2") for name in names})
    out = tmp_path / "calls.csv"
    result = CliRunner().invoke(app, ["report", "call-advantage", str(tmp_path), "--out", str(out)])
    assert result.stdout == f"call_advantage: steps=1 rows=2 unrecorded=1 faults=1 file={out}\n"
    assert [(line["call"], line["num_calls"], line["raw_mean"]) for line in table(out)] == [
        ("submit", "1", "1.0"),
        ("first_explore", "0", ""),
        ("later_explores", "0", ""),
        ("other", "0", ""),
        ("unrecorded", "", "1.0"),
        ("all", "", "1.0"),
    ]
