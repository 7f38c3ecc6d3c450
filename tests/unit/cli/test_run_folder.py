"""A run folder belongs to one configuration, data and model; a resume continues it under the next number."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from start_of_a_run import config

from atlas_rl.cli.preflight import Prepared
from atlas_rl.cli.run_folder import RunFolder
from atlas_rl.cli.train import own_environment
from atlas_rl.errors import ConfigError
from atlas_rl.training.config import atlas_config

PREPARED = Prepared(
    grammar_hashes={"urn/first": "a" * 64},
    protocol_token_ids={"call_begin": 5, "stop": [2]},
    files={"train.parquet": ("b" * 64, 5)},
    num_train_rows=5,
    num_val_rows=0,
    longest_prompt=30,
    model_fingerprints={"actor_rollout_ref.model.path": "c" * 64},
)


def demo(tmp_path: Path, **changes: Any) -> DictConfig:
    places = {"atlas.run.artifacts_dir": str(tmp_path / "artifacts"), "atlas.run.logs_dir": str(tmp_path / "logs")}
    return config(**{**places, "trainer.default_local_dir": str(tmp_path / "checkpoints"), **changes})


def started(one: DictConfig, prepared: Prepared = PREPARED) -> RunFolder:
    folder = RunFolder(one, atlas_config(one), prepared)
    folder.enter()
    return folder


def test_a_new_run_writes_its_manifest_and_logs_as_attempt_0(tmp_path: Path) -> None:
    one = demo(tmp_path)
    folder = started(one)
    assert folder.log == tmp_path / "logs" / "test.attempt0.log"
    assert (folder.atlas.run.attempt_id, one.atlas.run.attempt_id) == (0, 0)
    manifest = json.loads((tmp_path / "artifacts" / "test" / "run.json").read_text())
    assert manifest["config"]["atlas"]["reward"]["format_score"] == "0"
    assert manifest["data_files"] == {"train.parquet": {"sha256": "b" * 64, "num_rows": 5}}
    assert manifest["model_fingerprints"] == {"actor_rollout_ref.model.path": "c" * 64}
    assert manifest["potential"]["name"] == "zero"
    assert not folder.starts_over


def test_nothing_is_written_before_the_folder_is_entered(tmp_path: Path) -> None:
    one = demo(tmp_path)
    RunFolder(one, atlas_config(one), PREPARED)
    assert list(tmp_path.iterdir()) == []


def test_the_reward_that_is_passed_on_reads_back_as_the_same(tmp_path: Path) -> None:
    one = demo(tmp_path, **{"atlas.reward": {"preset": "both", "potentials": {"zero": 0.5}}})
    before = atlas_config(one)
    folder = started(one)
    assert atlas_config(one) == folder.atlas == before
    manifest = json.loads((tmp_path / "artifacts" / "test" / "run.json").read_text())
    assert manifest["potential"]["name"] == "0.5 * zero"


def test_a_second_start_of_a_run_is_refused(tmp_path: Path) -> None:
    started(demo(tmp_path))
    with pytest.raises(ConfigError) as caught:
        started(demo(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path}/artifacts/test/run.json is already there with this configuration; resume it with "
        "atlas.run.resume=true, or choose another atlas.run.id"
    )


def test_a_run_folder_of_another_configuration_is_refused_whether_resumed_or_not(tmp_path: Path) -> None:
    started(demo(tmp_path))
    message = (
        f"{tmp_path}/artifacts/test/run.json was started otherwise: algorithm.lam=0.9, now 0.95; choose another "
        "atlas.run.id"
    )
    for resume in (False, True):
        with pytest.raises(ConfigError) as caught:
            started(demo(tmp_path, **{"algorithm.lam": 0.95, "atlas.run.resume": resume}))
        assert str(caught.value) == message


def test_a_run_whose_data_changed_cannot_be_resumed(tmp_path: Path) -> None:
    started(demo(tmp_path))
    other = replace(PREPARED, files={"train.parquet": ("d" * 64, 5)})
    with pytest.raises(ConfigError) as caught:
        started(demo(tmp_path, **{"atlas.run.resume": True}), other)
    assert str(caught.value) == (
        f'{tmp_path}/artifacts/test/run.json was started otherwise: data_files: train.parquet.sha256="{"b" * 64}", now '
        f'"{"d" * 64}"; choose another atlas.run.id'
    )


def test_a_resume_is_numbered_and_knows_whether_there_is_a_step_to_go_on_from(tmp_path: Path) -> None:
    started(demo(tmp_path))
    for attempt in (1, 2):
        one = demo(tmp_path, **{"atlas.run.resume": True, "trainer.logger": ["wandb"]})
        folder = started(one)
        assert folder.log.name == f"test.attempt{attempt}.log"
        assert (folder.atlas.run.attempt_id, one.atlas.run.attempt_id) == (attempt, attempt)
        assert json.loads((tmp_path / "artifacts" / "test" / f"run.resume_{attempt}.json").read_text())
        assert folder.starts_over
    (tmp_path / "checkpoints" / "global_step_3").mkdir(parents=True)
    assert not folder.starts_over


def test_two_processes_cannot_take_one_attempt(tmp_path: Path) -> None:
    started(demo(tmp_path))
    resumed = demo(tmp_path, **{"atlas.run.resume": True})
    waiting = RunFolder(resumed, atlas_config(resumed), PREPARED)
    started(demo(tmp_path, **{"atlas.run.resume": True}))
    with pytest.raises(ConfigError) as caught:
        waiting.enter()
    assert str(caught.value) == (
        f"{tmp_path}/artifacts/test: attempt 1 was taken by another process, this would be 2; start again once that "
        "one has ended"
    )


def test_what_a_run_sets_for_its_libraries_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)

    def run() -> None:
        os.environ["WANDB_RUN_ID"] = "first of a sweep"
        del os.environ["WANDB_MODE"]
        raise ConfigError("it failed")

    with pytest.raises(ConfigError), own_environment():
        run()
    assert "WANDB_RUN_ID" not in os.environ
    assert os.environ["WANDB_MODE"] == "offline"
