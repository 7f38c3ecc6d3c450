"""What `atlas-rl check memory` prints, when it fails, and which runs may be checked."""

from pathlib import Path

import pytest
from memory_records import head, passes, rank, stage
from start_of_a_run import config
from typer.testing import CliRunner

from atlas_rl.cli.main import app
from atlas_rl.cli.memory_keys import check_memory_keys
from atlas_rl.errors import ConfigError
from atlas_rl.reporting.memory import Stage, memory_report, write_memory_report
from atlas_rl.training.config import atlas_config


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that measured a wake-up and an update."""
    stages = [
        stage(Stage.WEIGHTS, 0, rank(free=15), awake=True),
        stage(Stage.UPDATE_ACTOR, 1, rank(passes=(passes(),))),
    ]
    write_memory_report(tmp_path, memory_report(head("weights/0", "update_actor/1"), stages))
    return tmp_path


def test_a_whole_check_prints_its_stages_and_exits_with_0(run: Path) -> None:
    result = CliRunner().invoke(app, ["check", "memory", str(run)])
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "run check: 32 rows of 512 + 1024 tokens"
    #                            stage            s     rank peak      tensors  margin   host    micro updates
    assert lines[5].split() == ["update_actor/1", "2.0", "0", "100.00", "98.00", "30.00", "6.00", "4", "1"]
    assert "device memory in use with the rollout engine awake, GiB: weights/0 125.00" in lines
    assert lines[-1] == (
        "check: stages=2 longest_row=1536 peak_gib=100.00 margin_gib=5.00 host_margin_gib=70.00 failures=0"
    )


def test_too_little_room_exits_with_1(run: Path) -> None:
    result = CliRunner().invoke(app, ["check", "memory", str(run), "--min-margin-gib", "6"])
    assert result.exit_code == 1
    assert "fault: the margin is 5.00 GiB, below 6; lower a token budget" in result.stdout


def test_a_missing_stage_exits_with_1_and_is_named(tmp_path: Path) -> None:
    write_memory_report(tmp_path, memory_report(head("models", "real_step/3"), [stage(Stage.MODELS, None)], "stopped"))
    result = CliRunner().invoke(app, ["check", "memory", str(tmp_path)])
    assert result.exit_code == 1
    assert "fault: stopped: stopped" in result.stdout
    assert "fault: not measured on every rank: real_step/3" in result.stdout


@pytest.mark.parametrize(
    ("key", "value"), [("trainer.val_only", True), ("trainer.critic_warmup", 2), ("atlas.run.resume", True)]
)
def test_a_check_that_could_not_measure_is_refused_and_a_run_without_a_check_is_not(key: str, value: object) -> None:
    plain = config(**{key: value})
    check_memory_keys(plain, atlas_config(plain))
    checked = config(**{key: value, "atlas.memory_check.enabled": True})
    with pytest.raises(ConfigError, match=f"^{key}=.*: a memory check cannot be made with it") as caught:
        check_memory_keys(checked, atlas_config(checked))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "value"), [("num_steps", 0), ("num_long_prompts", -1)])
def test_numbers_below_their_least_are_refused(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"atlas.memory_check.{key} must be at least"):
        atlas_config(config(**{f"atlas.memory_check.{key}": value}))
