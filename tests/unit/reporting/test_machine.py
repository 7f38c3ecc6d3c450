"""The host of a run, its cards and its variables, told without torch."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atlas_rl.reporting.machine import (
    HIDDEN,
    Card,
    cards,
    command_without_secrets,
    process_start,
    recorded_environment,
    this_machine,
    without_secrets,
)

TWO_CARDS = "0, NVIDIA H200, 143771, 570.86\n1, NVIDIA A100-SXM4-80GB, 81920, 570.86\n"


def smi(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program named nvidia-smi first on the path."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_cards_are_what_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, f"test \"$2\" = --format=csv,noheader,nounits && printf '{TWO_CARDS}'", monkeypatch)
    assert cards() == (
        Card(index=0, name="NVIDIA H200", memory_mib=143771, driver="570.86"),
        Card(index=1, name="NVIDIA A100-SXM4-80GB", memory_mib=81920, driver="570.86"),
    )
    assert this_machine().cards == cards()


@pytest.mark.parametrize("text", ["exit 9", "echo 'no devices were found'", "echo '0, GB10, [N/A], 580.1'"])
def test_cards_that_cannot_be_told_are_not_none_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    smi(tmp_path, text, monkeypatch)
    assert cards() is None


def test_without_nvidia_smi_there_is_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cards() == ()


def test_the_machine_has_at_least_what_the_process_may_use() -> None:
    machine = this_machine()
    assert 1 <= machine.num_usable_cpus <= machine.num_cpus
    assert machine.memory_mib > 256
    assert machine.hostname


def test_variables_are_kept_by_their_beginning_or_by_name() -> None:
    given = {
        "VLLM_USE_V1": "1", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "", "MINE": "3", "HOME": "/root",
        "MY_VLLM_X": "4", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    assert list(recorded_environment(given, {"MINE"}).items()) == [
        ("CUDA_VISIBLE_DEVICES", ""), ("MINE", "3"), ("OMP_NUM_THREADS", "2"), ("TOKENIZERS_PARALLELISM", "false"),
        ("VLLM_USE_V1", "1"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "RAY_PASSWORD", "VLLM_SECRET"])
def test_a_secret_is_named_without_its_value(name: str) -> None:
    assert recorded_environment({name: "s3cr3t"}) == {name: HIDDEN}


def test_the_start_of_a_process_is_told() -> None:
    before = time.time()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = process_start(child.pid)
    finally:
        child.communicate(b"\n")
    assert started is not None
    #      /proc/stat gives the boot time in whole seconds.
    assert before - 1.1 <= started <= time.time() + 1.1
    assert process_start(child.pid) is None


def test_nothing_heavy_is_imported() -> None:
    script = "import sys, atlas_rl.reporting.manifest; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert {"torch", "psutil", "rich"}.isdisjoint(loaded)


def test_secrets_are_hidden_wherever_a_run_names_a_variable() -> None:
    config = {
        "atlas": {"env": {"WANDB_API_KEY": "x", "OMP_NUM_THREADS": "1"}, "run": {"id": "key"}},
        "ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"HF_TOKEN": "y"}}}},
        "data": {"tokenizer": "t"},
    }
    assert without_secrets(config) == {
        "atlas": {"env": {"WANDB_API_KEY": HIDDEN, "OMP_NUM_THREADS": "1"}, "run": {"id": "key"}},
        "ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"HF_TOKEN": HIDDEN}}}},
        "data": {"tokenizer": "t"},
    }
    words = ["train", "+atlas.env.WANDB_API_KEY=x", "atlas.env.OMP_NUM_THREADS=1", "data.token=z", "env"]
    assert command_without_secrets(words) == (
        "train", f"+atlas.env.WANDB_API_KEY={HIDDEN}", "atlas.env.OMP_NUM_THREADS=1", "data.token=z", "env",
    )  # fmt: skip
