"""The demo's experiment with the GPU configuration: three steps on one card, the first for the critic alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from atlas_rl.data.parquet import write_rows
from atlas_rl.models.tiny import build_tiny_model
from atlas_rl.reporting.summary import summarise_run
from atlas_rl.reporting.weight_sync import read_readings
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_three_steps_with_validation_keep_every_promise(tmp_path: Path):
    rows = make_rows(UrnConfig(), 256, 0, "train-")
    write_rows(rows, "urn", tmp_path / "train.parquet")
    write_rows(make_rows(UrnConfig(), 32, 1, "val-"), "urn", tmp_path / "val.parquet")
    build_tiny_model(tmp_path / "model", benchmark=load_benchmark("urn"), rows=rows, seed=0)
    overrides = [
        "experiment=urn_demo", "hardware=gpu", "atlas.run.id=card", f"atlas.run.artifacts_dir={tmp_path}/artifacts",
        f"atlas.run.logs_dir={tmp_path}/logs", f"data.train_files={tmp_path}/train.parquet",
        f"data.val_files={tmp_path}/val.parquet", f"actor_rollout_ref.model.path={tmp_path}/model",
        "actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "critic.model.override_config.attn_implementation=sdpa", "actor_rollout_ref.rollout.enforce_eager=true",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.2", "critic.fsdp.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false", "trainer.total_training_steps=3",
        "trainer.test_freq=3", "trainer.critic_warmup=2",
    ]  # fmt: skip
    command = [sys.executable, "-m", "atlas_rl.cli.train", *overrides]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert finished.returncode == 0, f"{finished.stdout[-2000:]}\n{finished.stderr[-2000:]}"
    summary = summarise_run(tmp_path / "artifacts" / "card")
    assert (summary.num_training_steps, summary.num_training_episodes) == (3, 384)
    assert [validation.step for validation in summary.validations] == [0, 3]
    assert summary.protocol_violations == 0
    assert set(summary.invariant_max.values()) == {0.0}
    readings = [one for one in read_readings(tmp_path / "artifacts" / "card") if one.comparison is not None]
    assert [(one.name, one.comparison.num_changed_tokens > 0) for one in readings if one.comparison] == [
        ("before_validation_0", False), ("after_step_1", False), ("after_step_2", True), ("after_step_3", True),
        ("before_validation_3", False),
    ]  # fmt: skip
