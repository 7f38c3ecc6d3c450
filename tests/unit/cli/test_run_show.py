"""`atlas-rl run show` and `atlas-rl run diff`: what they print and how they exit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from record_builders import trajectory
from start_of_a_run import config, unresolved
from typer.testing import CliRunner

from atlas_rl.cli.composition import complete
from atlas_rl.cli.main import app
from atlas_rl.cli.saved_steps import saved_steps
from atlas_rl.cli.shipped_defaults import ABSENT, changed_keys
from atlas_rl.records.json_text import to_json
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.reporting.manifest import DataFile, PotentialBinding, build_manifest, open_run, read_manifest
from atlas_rl.rewards.config import RewardConfig


def settled(**changes: Any) -> dict[str, Any]:
    """A configuration as a run writes it down."""
    plain: Any = OmegaConf.to_container(config(**changes), resolve=True)
    plain["atlas"]["reward"] = RewardConfig.from_mapping(plain["atlas"]["reward"]).to_mapping()
    return {str(key): value for key, value in plain.items()}


def start(run: Path, *, resume: bool = False, **changes: Any) -> Path:
    manifest = build_manifest(
        run.name,
        settled(**{"atlas.run.id": run.name, **changes}),
        potential=PotentialBinding(name="zero", sha256="0" * 64),
        grammar_hashes={"urn/open": "b" * 64},
        protocol_token_ids={"stop": [2, 3]},
        data_files={"train.parquet": DataFile(sha256="d" * 64, num_rows=5)},
        model_fingerprints={"critic.model.path": "e" * 64},
    )
    open_run(run, manifest, resume=resume, ignored_keys=("trainer.logger",))
    return run


def rows(text: str, title: str) -> dict[str, str]:
    """First word to the rest of each line below a title, up to the next empty one."""
    lines = [line.strip() for line in text.splitlines()]
    place = next(n for n, line in enumerate(lines) if line == title or line.startswith((f"{title},", f"{title} (")))
    end = lines.index("", place)
    return {key: rest.strip() for key, _, rest in (line.partition("  ") for line in lines[place + 1 : end])}


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two attempts, three rows and three saved steps."""
    run = start(tmp_path / "run-a", **{"atlas.checkpoint.anchor_every": 2})
    start(run, resume=True, **{"atlas.checkpoint.anchor_every": 2, "trainer.logger": ["wandb"]})
    with TrajectoryWriter(run / "train", "w") as writer:
        for number in range(3):
            writer.append(trajectory(f"q{number}"))
    (run / "metrics.jsonl").write_text('{"step": 3, "time": "2026-01-02T03:04:05"}\n')
    for step in (2, 3, 4):
        (run / "checkpoints" / f"global_step_{step}").mkdir(parents=True)
        (run / "checkpoints" / f"global_step_{step}" / "manifest.json").write_text("x" * 10)
    (run / "checkpoints" / "latest").write_text("global_step_4\n")
    return run


def test_a_run_is_shown_with_all_that_its_manifest_says(run: Path) -> None:
    shown = invoke("show", run)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert rows(shown.stdout, "run")["run_id"] == "run-a"
    assert rows(shown.stdout, "versions")["verl"] == "0.9.1"
    assert rows(shown.stdout, "data")["train.parquet"] == f"5 rows, sha256 {'d' * 64}"
    assert rows(shown.stdout, "models")["critic.model.path"] == f"sha256 {'e' * 64}"
    assert rows(shown.stdout, "potential")["name"] == "zero"
    assert rows(shown.stdout, "grammar")["urn/open"] == f"sha256 {'b' * 64}"
    assert rows(shown.stdout, "protocol tokens") == {"stop": "[2, 3]"}
    assert rows(shown.stdout, "machine")["cpus"].endswith("x86_64")
    progress = rows(shown.stdout, "progress")
    assert progress["last step"] == "3, at 2026-01-02T03:04:05"
    assert (progress["train trajectories"], progress["val trajectories"]) == ("3", "0")
    assert (progress["saved steps"], progress["latest"], progress["anchors"]) == ("2, 3, 4", "4", "2, 4")
    assert progress["bytes on disk"] == "30"
    assert 'config.trainer.logger: [] -> ["wandb"]' in rows(shown.stdout, "attempts")["1"]


def test_only_changed_keys_are_shown_unless_all_are_asked_for(run: Path) -> None:
    changed, whole = (rows(invoke("show", run, *more).stdout, "config") for more in ((), ("--config",)))
    assert changed["critic.optim.lr"].split() == ["1e-05", "0.003"]
    assert "critic.optim.weight_decay" not in changed
    assert whole["critic.optim.weight_decay"] == "0.01"
    assert len(whole) > 400 > 60 > len(changed)


def test_json_holds_every_manifest_and_the_rest(run: Path) -> None:
    plain = json.loads(invoke("show", run, "--json").stdout)
    assert [attempt["attempt_id"] for attempt in plain["attempts"]] == [0, 1]
    assert plain["attempts"][0] == json.loads((run / "run.json").read_text())
    assert plain["trajectories"] == {"train": 3, "val": 0}
    assert plain["checkpoints"] == {
        "folder": str(run / "checkpoints"), "steps": [2, 3, 4], "latest": 4, "anchors": [2, 4], "num_bytes": 30
    }  # fmt: skip


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "atlas_rl.cli.main", "run", "show", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"RecordError: {tmp_path}: no run: run.json is not there; give artifacts/RUN\n"


def test_a_manifest_of_an_earlier_version_is_shown(run: Path) -> None:
    new = ("started_at", "command", "working_directory", "machine", "environment")
    (run / "run.json").write_bytes(to_json(read_manifest(run / "run.json"), exclude=new))
    shown = invoke("show", run)
    assert shown.exit_code == 0
    assert rows(shown.stdout, "run")["command"] == "not recorded"
    assert rows(shown.stdout, "machine") == {"host": "not recorded"}


def test_runs_that_do_the_same_are_equal_under_other_names(tmp_path: Path) -> None:
    a, b = start(tmp_path / "a"), start(tmp_path / "b", **{"trainer.experiment_name": "b"})
    found = invoke("diff", a, b)
    assert found.exit_code == 0
    assert found.stdout.splitlines()[-1] == "diff: differences=0 unrecorded=0"
    assert rows(found.stdout, "identity")["run_id"].split() == ["a", "b"]


def test_runs_that_differ_exit_with_1_and_say_where(tmp_path: Path) -> None:
    a, b = start(tmp_path / "a"), start(tmp_path / "b", **{"algorithm.lam": 0.5, "critic.optim.lr": 1.0})
    found = invoke("diff", a, b / "run.json")
    assert found.exit_code == 1
    differing = rows(found.stdout, "config")
    assert differing["config.algorithm.lam"].split() == ["0.9", "0.5"]
    assert found.stdout.splitlines()[-1] == "diff: differences=2 unrecorded=0"
    one = invoke("diff", a, b, "--ignore", "algorithm", "--json")
    assert one.exit_code == 1
    assert json.loads(one.stdout)["differences"] == {
        "config": [{"key": "config.critic.optim.lr", "a": 0.003, "b": 1.0}]
    }  # fmt: skip
    both = invoke("diff", a, b, "--ignore", "algorithm.lam", "--ignore", "config.critic.optim")
    assert both.exit_code == 0


@pytest.mark.parametrize("content", [None, '{"run_id": ', "[]"])
def test_what_is_no_manifest_exits_with_2_in_one_line(tmp_path: Path, content: str | None) -> None:
    a, other = start(tmp_path / "a"), tmp_path / "b.json"
    if content is not None:
        other.write_text(content)
    found = invoke("diff", a, other)
    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"RecordError: {other}: ")
    assert len(found.stderr.splitlines()) == 1
    assert invoke("diff", a).exit_code == 2


def test_what_follows_a_changed_key_is_not_called_changed() -> None:
    def written(**changes: Any) -> dict[str, Any]:
        plain: Any = OmegaConf.to_container(complete(unresolved(**changes)), resolve=True)
        return dict(plain)

    plain = written()
    before, after = changed_keys(plain), changed_keys(written(**{"data.max_prompt_length": 700, "atlas.run.seed": 5}))
    assert after["data.max_prompt_length"] == (512, 700)
    #      The rollout's prompt_length repeats the data's, seeds of data and adapters that of the run.
    assert after.keys() - before.keys() == {"atlas.run.seed"}
    own = changed_keys(written(**{"critic.model.lora_rank": 3}))
    assert own["critic.model.lora_rank"] == (8, 3)
    assert changed_keys(plain | {"extra": {"x": 1}})["extra.x"] == (ABSENT, 1)
    del plain["data"]["shuffle"]
    assert changed_keys(plain)["data.shuffle"] == (True, ABSENT)


def test_checkpoints_are_looked_for_where_the_run_put_them(tmp_path: Path) -> None:
    run = start(tmp_path / "a", **{"trainer.default_local_dir": "elsewhere/steps"})
    manifest = read_manifest(run / "run.json")
    found = saved_steps(run, manifest)
    assert (found.folder, found.steps, found.latest) == (Path.cwd() / "elsewhere" / "steps", (), None)
    (run / "checkpoints").mkdir()
    assert saved_steps(run, manifest).folder == run / "checkpoints"
