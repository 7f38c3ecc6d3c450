"""The memory check as a whole command, on two CPU cores: synthetic rows, long contexts, a real step; and its reader."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atlas_rl.data.parquet import write_rows
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.reporting.memory import read_memory_report
from atlas_rl.reporting.metrics import read_metrics
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def command(work: Path, *more: str) -> list[str]:
    overrides = [
        "experiment=memory_check", "atlas.run.id=check", f"atlas.run.artifacts_dir={work}/artifacts",
        f"atlas.run.logs_dir={work}/logs", f"data.train_files={work}/train.parquet",
        f"data.val_files={work}/train.parquet", f"actor_rollout_ref.model.path={work}/tiny",
        "data.train_batch_size=2", "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "critic.ppo_mini_batch_size=2", "data.max_prompt_length=64", "data.max_response_length=128",
        "actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=400", "critic.ppo_max_token_len_per_gpu=200",
        "atlas.memory_check.num_steps=1", "atlas.memory_check.num_long_prompts=2", "atlas.policy.logprobs=grammar",
    ]  # fmt: skip
    return [sys.executable, "-m", "atlas_rl.cli.train", *overrides, *more]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained tiny model and questions for it."""
    from atlas_rl.models.tiny import build_tiny_model

    folder = tmp_path_factory.mktemp("memory")
    rows = make_rows(UrnConfig(), 64, 7, "tokenizer-")
    build_tiny_model(folder / "tiny", benchmark=load_benchmark("urn"), rows=rows, seed=0)
    write_rows(rows[:8], "urn", folder / "train.parquet")
    return folder


def finished(work: Path, *more: str) -> list[str]:
    """Lines that the command printed."""
    done = subprocess.run(command(work, *more), cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=600)
    logs = sorted((work / "logs").glob("*.log"))
    tail = logs[-1].read_text(errors="replace")[-4000:] if logs else ""
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{tail}"
    return done.stdout.splitlines()


def test_a_check_measures_every_stage_and_leaves_no_trace_of_synthetic_rows(work: Path) -> None:
    lines = finished(work)
    run = work / "artifacts" / "check"
    report = read_memory_report(run)
    assert report.faults(0.0) == []
    assert [stage.name for stage in report.stages] == list(report.expected)
    #                                         before   one step of synthetic rows ...
    assert report.expected == (
        "models", "weights/0", "rows/1", "old_log_prob/1", "values/1", "advantage/1", "update_critic/1",
        "update_actor/1", "save/1", "weights/1", "probe/1", "long_contexts", "real_step/2",
    )  # fmt: skip
    assert (report.num_rows, report.longest_row) == (4, 192)
    assert lines[-1].startswith("memory_check: steps=1 rows=4 longest_row=192 peak_gib=")
    passes = {stage.name: {one.model: one for one in stage.ranks[0].passes} for stage in report.stages}
    # Budgets of two rows and of one row: two and four micro-batches.
    assert (passes["old_log_prob/1"]["actor"].forward, passes["values/1"]["critic"].forward) == (2, 4)
    assert (passes["update_actor/1"]["actor"].training, passes["update_critic/1"]["critic"].training) == (2, 4)
    assert {name: models["actor"].updates for name, models in passes.items() if models["actor"].updates} == {
        "update_actor/1": 1, "real_step/2": 1,
    }  # fmt: skip
    awake = [stage.name for stage in report.stages if stage.is_engine_awake]
    assert awake == ["weights/0", "weights/1", "probe/1", "long_contexts", "real_step/2"]
    assert {rank.device for stage in report.stages for rank in stage.ranks} == {"cpu"}

    assert [folder.name for folder in (run / "train").iterdir() if folder.name.startswith("step_")] == ["step_2"]
    assert {(row.global_steps, row.benchmark) for row in TrajectoryStore(run)} == {(2, "urn")}
    lines_of = read_metrics(run / "metrics.jsonl").lines
    assert {line["step"] for line in lines_of if "train/utility_mean" in line} == {2}
    reader = [sys.executable, "-m", "atlas_rl.cli.main", "check", "memory", str(run)]
    check = subprocess.run(reader, cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr


def test_without_a_rollout_engine_the_updates_are_measured_alone(work: Path) -> None:
    finished(work, "atlas.memory_check.rollout=false", "atlas.run.id=alone")
    report = read_memory_report(work / "artifacts" / "alone")
    assert report.faults(0.0) == []
    assert report.expected == (
        "models", "rows/1", "old_log_prob/1", "values/1", "advantage/1", "update_critic/1", "update_actor/1", "save/1",
    )  # fmt: skip
    assert not any(stage.is_engine_awake for stage in report.stages)
    assert json.loads((work / "artifacts" / "alone" / "memory_check.json").read_text())["failure"] is None
