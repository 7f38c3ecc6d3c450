"""A LoRA critic of a real engine: its head trains with every update, and a saved step brings back every bit of it."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_main_job import ROOT

from atlas_rl.checkpoint.manifest import read_manifest
from atlas_rl.models.tiny import build_tiny_model
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("critic_state.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained tiny model."""
    folder = tmp_path_factory.mktemp("critic") / "model"
    build_tiny_model(folder, benchmark=load_benchmark("urn"), rows=make_rows(UrnConfig(), 64, 7, "tokenizer-"), seed=0)
    return folder


def run(what: str, model: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), what, str(model), str(folder)]
    return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=300)


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("CRITIC "))[7:])
    return found


@pytest.fixture(scope="module")
def saved(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A saved step and what its critic said before it was saved."""
    folder = tmp_path_factory.mktemp("steps")
    return folder, said(run("save", model, folder))


def test_the_head_changes_with_every_update(saved: tuple[Path, dict[str, Any]]):
    heads = saved[1]["heads"]
    assert len(heads) == 4
    assert {name.rsplit(".", 1)[1] for name in heads[0]} == {"weight", "bias"}
    for before, after in itertools.pairwise(heads):
        assert all(before[name] != after[name] for name in before)


def test_values_in_a_fresh_process_are_to_the_bit_those_before_the_save(
    saved: tuple[Path, dict[str, Any]], model: Path
):
    folder, before = saved
    after = said(run("load", model, folder))
    assert after["heads"][-1] == before["heads"][-1] != after["heads"][0]
    assert len(after["values"]) > 20
    assert len(set(after["values"])) > 10
    assert after["values"] == before["values"]


def test_adapters_and_both_tensors_of_the_head_are_saved(saved: tuple[Path, dict[str, Any]]):
    manifest = read_manifest(saved[0] / "global_step_3")
    names = manifest.files["critic/rank_0/trainable.safetensors"].tensors
    assert names is not None
    heads = sorted(name for name in names if ".modules_to_save." in name)
    assert [name.rsplit(".", 1)[1] for name in heads] == ["bias", "weight"]
    assert {part for name in names for part in ("lora_A", "lora_B") if f".{part}." in name} == {"lora_A", "lora_B"}


def test_a_step_without_its_head_is_refused(saved: tuple[Path, dict[str, Any]], model: Path, tmp_path: Path):
    """What another program's LoRA-only save leaves: the load must not report success over a random head."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(saved[0], tmp_path / "steps")
    file = tmp_path / "steps" / "global_step_3" / "critic" / "rank_0" / "trainable.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if "lora_" in name}, file)
    done = run("load", model, tmp_path / "steps")
    assert done.returncode != 0
    assert "trainable.safetensors" in done.stderr.splitlines()[-1]
