"""Six steps against three, a kill of the process group, and three more: equal to the bit, across an epoch's end."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_main_job import ROOT, train_command
from tiny_urn import write_tiny_urn

from atlas_rl.checkpoint.manifest import read_manifest
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.reporting.metrics import read_metrics

pytestmark = pytest.mark.slow
NUM_STEPS, KILLED_AFTER = 6, 3
Row = tuple[str, int]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions and a model. Four batches an epoch, so that the fifth step, after the kill, begins another one."""
    work = tmp_path_factory.mktemp("resume")
    write_tiny_urn(work, 16)
    return work


def command(work: Path, run_id: str, *more: str) -> list[str]:
    return train_command(
        work, work / "model", f"trainer.total_training_steps={NUM_STEPS}", "trainer.test_freq=-1",
        "trainer.val_before_train=false", "trainer.critic_warmup=0", f"trainer.save_freq={KILLED_AFTER}",
        f"atlas.run.id={run_id}", *more,
    )  # fmt: skip


def finish(work: Path, run_id: str, *more: str) -> str:
    done = subprocess.run(
        command(work, run_id, *more), cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def kill_after(work: Path, run_id: str, step: int) -> None:
    """Start a run and end its process group without notice once a step is saved."""
    with (work / f"{run_id}.out").open("w") as out:
        started = subprocess.Popen(
            command(work, run_id), cwd=ROOT, env=os.environ, stdout=out, stderr=out, start_new_session=True
        )
    latest = work / "artifacts" / run_id / "checkpoints" / "latest"
    deadline = time.monotonic() + 600
    while not (latest.is_file() and latest.read_text().strip() == f"global_step_{step}"):
        assert started.poll() is None, (work / f"{run_id}.out").read_text()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()


@pytest.fixture(scope="module")
def runs(work: Path) -> tuple[Path, Path]:
    """A run without a break, and one that was killed and resumed."""
    finish(work, "whole")
    kill_after(work, "broken", KILLED_AFTER)
    assert f"resumed from step {KILLED_AFTER}" in finish(work, "broken", "atlas.run.resume=true")
    return work / "artifacts" / "whole", work / "artifacts" / "broken"


def sampled(run: Path) -> dict[int, dict[Row, tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Prompt and response ids by step and row, of the latest attempt of each."""
    found: dict[int, dict[Row, tuple[int, tuple[tuple[int, ...], tuple[int, ...]]]]] = {}
    for t in TrajectoryStore(run / "train"):
        step = found.setdefault(t.global_steps, {})
        before = step.get((t.uid, t.session_id), (-1, ((), ())))
        if t.attempt_id > before[0]:
            step[t.uid, t.session_id] = (t.attempt_id, (t.prompt_ids, t.response_ids))
    return {number: {row: ids for row, (_, ids) in step.items()} for number, step in found.items()}


def test_prompts_and_sampled_ids_of_every_step_are_equal(runs: tuple[Path, Path]):
    whole, broken = map(sampled, runs)
    assert sorted(whole) == sorted(broken) == list(range(1, NUM_STEPS + 1))
    for step in whole:
        assert whole[step] == broken[step], f"step {step}"


def test_adapters_head_optimizers_and_schedules_end_equal_to_the_bit(runs: tuple[Path, Path]):
    ends = [read_manifest(run / "checkpoints" / f"global_step_{NUM_STEPS}") for run in runs]
    files = [{name: entry.sha256 for name, entry in end.files.items() if not name.startswith("run/")} for end in ends]
    compared = [name for name in files[0] if "rng" not in name]
    assert len([name for name in compared if name.endswith("trainable.safetensors")]) == 2
    assert len([name for name in compared if name.endswith("optimizer.safetensors")]) == 2
    assert {name: files[0][name] for name in compared} == {name: files[1][name] for name in compared}


def test_the_counters_go_on(runs: tuple[Path, Path]):
    for run in runs:
        last = [line for line in read_metrics(run / "metrics.jsonl").lines if "training/global_step" in line][-1]
        assert last["training/actor_updates"] == NUM_STEPS
        assert last["training/critic_updates"] == NUM_STEPS
