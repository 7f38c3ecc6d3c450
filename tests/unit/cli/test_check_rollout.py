"""What `atlas-rl check rollout` prints, and when it fails."""

from pathlib import Path

import pytest
from boundary_stage import manifest, stage, terse_policy
from typer.testing import CliRunner

from atlas_rl.cli.main import app
from atlas_rl.records.json_text import to_json
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one submitted episode and one that reached its last turn."""
    rows = {row.episode.terminal_reason: row for row in stage(terse_policy, sessions=1)}
    return write(tmp_path, rows["submitted"], rows["max_turns"])


def write(folder: Path, *rows: Trajectory) -> Path:
    with TrajectoryWriter(folder / "val" / "step_0", "w") as writer:
        for row in rows:
            writer.append(row)
    (folder / "run.json").write_bytes(to_json(manifest(len(rows), 1)))
    return folder


def test_a_sound_run_prints_its_reasons_and_exits_with_0(run: Path) -> None:
    result = CliRunner().invoke(app, ["check", "rollout", str(run)])
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "run boundary: responses of up to 128 tokens, 3 turns"
    shown = {line.split()[0]: line.split()[1:5] for line in lines[2:13]}
    #                           episodes share generations most turns
    assert shown["submitted"] == ["1", "50.0%", "2", "2"]
    assert shown["max_turns"] == ["1", "50.0%", "3", "3"]
    assert shown["no_call"] == ["0", "0.0%", "0", "0"]
    assert shown["all"][:2] == ["2", "5"]
    assert lines[-1] == "check: reasons=2/6 trajectories=2 violations=0 failures=0"
    assert (run / "rollout_check.json").is_file()


def test_a_reason_that_is_wanted_and_missing_exits_with_1_and_is_named(run: Path) -> None:
    result = CliRunner().invoke(app, ["check", "rollout", str(run), "--all-reasons"])
    assert result.exit_code == 1
    assert "no episode ended in: submitted_observation_dropped, explore_observation_dropped" in result.stdout
    assert result.stdout.splitlines()[-1] == "check: reasons=2/6 trajectories=2 violations=0 failures=0"


def test_a_broken_invariant_exits_with_1_and_names_the_episode(tmp_path: Path) -> None:
    row = next(iter(stage(terse_policy, sessions=1)))
    result = CliRunner().invoke(
        app, ["check", "rollout", str(write(tmp_path, row.model_copy(update={"reward_score": 9.0})))]
    )
    assert result.exit_code == 1
    assert f"score: {row.uid}_{row.session_id}_a0: reward_score=9.0, its trace adds up to" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("failures=1")


def test_a_run_without_episodes_exits_with_1_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(to_json(manifest(0)))
    result = CliRunner().invoke(app, ["check", "rollout", str(tmp_path)])
    assert result.exit_code == 1
    assert "no episode is stored, so nothing is proven" in result.stdout
