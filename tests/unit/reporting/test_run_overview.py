"""A run's folder read back: attempts and what they changed, the last step, the stored rows."""

import json
from pathlib import Path
from typing import Any

import pytest
from record_builders import trajectory

from atlas_rl.errors import RecordError
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.vocabulary import Partition
from atlas_rl.reporting.manifest import PotentialBinding, build_manifest, open_run
from atlas_rl.reporting.metrics import MetricsLog
from atlas_rl.reporting.run_overview import read_overview


def start(run: Path, *, resume: bool = False, **config: Any) -> None:
    potential = PotentialBinding(name="zero", sha256="0" * 64)
    manifest = build_manifest(run.name, config, potential=potential, grammar_hashes={}, protocol_token_ids={})
    open_run(run, manifest, resume=resume, ignored_keys=("ray_kwargs",))


def store(folder: Path, num_rows: int, partition: Partition) -> None:
    with TrajectoryWriter(folder, "w") as writer:
        for row in range(num_rows):
            writer.append(trajectory(f"q{row}", partition=partition))


def test_a_run_that_was_resumed_says_what_it_did(tmp_path: Path) -> None:
    run = tmp_path / "run-a"
    start(run, ray_kwargs={"num_cpus": 1})
    start(run, resume=True, ray_kwargs={"num_cpus": 2})
    start(run, resume=True, ray_kwargs={"num_cpus": 2})
    store(run / "train" / "step_1", 3, Partition.TRAIN)
    store(run / "train" / "step_2", 2, Partition.TRAIN)
    store(run / "val" / "step_0", 1, Partition.VAL)
    log = MetricsLog(run / "metrics.jsonl")
    for step in (0, 1, 2, 1):  # a resume runs a step again
        log.write(step, {"x": 1.0})
    log.close()
    overview = read_overview(run)
    assert [manifest.attempt_id for manifest in overview.attempts] == [0, 1, 2]
    assert [[one.key for one in change.differences] for change in overview.changes] == [
        ["config.ray_kwargs.num_cpus"], []
    ]  # fmt: skip
    assert (overview.last_step, dict(overview.trajectories), overview.torn) == (1, {"train": 5, "val": 1}, ())
    assert overview.last_time is not None
    plain = json.loads(json.dumps(overview.plain()))
    assert [attempt["config"]["ray_kwargs"]["num_cpus"] for attempt in plain["attempts"]] == [1, 2, 2]
    assert plain["changes"][0]["differences"]["config"] == [{"key": "config.ray_kwargs.num_cpus", "a": 1, "b": 2}]


def test_a_run_that_has_only_started_has_done_nothing(tmp_path: Path) -> None:
    start(tmp_path / "run-a")
    overview = read_overview(tmp_path / "run-a")
    assert (overview.last_step, overview.last_time) == (None, None)
    assert dict(overview.trajectories) == {"train": 0, "val": 0}


def test_what_a_kill_cut_short_is_listed(tmp_path: Path) -> None:
    run = tmp_path / "run-a"
    start(run)
    store(run / "train", 2, Partition.TRAIN)
    shard = next((run / "train").iterdir())
    shard.write_bytes(shard.read_bytes()[:-40])
    (run / "metrics.jsonl").write_text('{"step": 3, "time": "t"}\n{"step": 4')
    overview = read_overview(run)
    assert (overview.last_step, overview.trajectories["train"]) == (3, 1)
    assert [line.partition(": ")[0] for line in overview.torn] == [str(run / "metrics.jsonl"), str(shard)]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError) as refusal:
        read_overview(tmp_path)
    assert str(refusal.value) == f"{tmp_path}: no run: run.json is not there; give artifacts/RUN"
