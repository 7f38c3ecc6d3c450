"""The boundary stage with nothing replaced: verl, Ray, vLLM and XGrammar on two CPU cores, every cap met."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atlas_rl.cli.boundary import prepare_boundary
from atlas_rl.reporting.metrics import read_metrics
from atlas_rl.reporting.rollout_check import RolloutCheck, check_rollout

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts of the stage."""
    work = tmp_path_factory.mktemp("boundary")
    prepare_boundary(work)
    overrides = [
        "experiment=boundary_rollout", "atlas.run.id=edge", f"atlas.run.artifacts_dir={work}/artifacts",
        f"atlas.run.logs_dir={work}/logs", f"data.train_files={work}/rows.parquet",
        f"data.val_files={work}/rows.parquet", f"actor_rollout_ref.model.path={work}/model",
    ]  # fmt: skip
    command = [sys.executable, "-m", "atlas_rl.cli.train", *overrides]
    finished = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=900)
    log = work / "logs" / "edge.attempt0.log"
    tail = log.read_text(errors="replace")[-4000:] if log.is_file() else ""
    assert finished.returncode == 0, f"{finished.stdout[-2000:]}\n{finished.stderr[-2000:]}\n{tail}"
    return work / "artifacts" / "edge"


@pytest.fixture(scope="module")
def check(run: Path) -> RolloutCheck:
    return check_rollout(run, all_reasons=True)


def test_a_real_engine_takes_every_ending_and_breaks_nothing(check: RolloutCheck) -> None:
    assert {name: one.first for name, one in check.invariants.items() if one.failures} == {}
    assert (check.missing, check.protocol_violations, check.num_trajectories) == ((), 0, 968)
    assert check.is_passed


def test_a_rollout_stage_trains_nothing_and_logs_its_one_validation(run: Path) -> None:
    probed, probed_again, line = read_metrics(run / "metrics.jsonl").lines
    assert (line["step"], line["urn_boundary/overall/count"]) == (0, 968)
    assert "weight_sync/changed_token_fraction" not in probed
    assert probed_again["weight_sync/changed_token_fraction"] == 0.0
    assert [path.name for path in sorted(run.iterdir())] == [
        "metrics.jsonl", "packed_rows.json", "rollout_check.json", "run.json", "val", "val_dumps", "weight_sync",
    ]  # fmt: skip
