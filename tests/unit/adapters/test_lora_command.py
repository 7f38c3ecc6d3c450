"""``atlas-rl lora``: what it prints, and that its two commands fit together."""

import json
from pathlib import Path

import pytest
import torch
from adapter_models import ACTOR, TARGETS, load_base, outputs, say, write_base

from atlas_rl.cli.model_folder import fingerprint
from atlas_rl.errors import ConfigError


def test_init_then_merge(qwen3: Path, tmp_path: Path) -> None:
    said = say(
        "init", "--base", qwen3, "--out", tmp_path / "a", "--rank", 2, "--alpha", 4, "--targets", ",".join(TARGETS)
    )
    report = json.loads((tmp_path / "a" / "init_report.json").read_text())
    assert report["base"]["fingerprint"] == fingerprint(qwen3)
    assert [line.partition(", sha256")[0] for line in said] == [
        f"{tmp_path}/a/actor: CAUSAL_LM, rank 2, 28 tensors, 3008 float32 values, 0 of 14 B non-zero",
        f"{tmp_path}/a/critic: TOKEN_CLS, rank 2, 30 tensors, 3041 float32 values, 0 of 14 B non-zero",
    ]
    said = say("merge", "--base", qwen3, "--adapter", tmp_path / "a" / "actor", "--out", tmp_path / "m")
    assert said[0] == f"{tmp_path}/m: 14 weights changed, 10 tensors as they were"
    assert len(said) == 2
    assert torch.equal(outputs(load_base(tmp_path / "m", ACTOR)), outputs(load_base(qwen3, ACTOR)))


def test_another_base_is_refused_by_its_fingerprint(qwen3: Path, tmp_path: Path) -> None:
    say("init", "--base", qwen3, "--out", tmp_path / "a", "--targets", "q_proj")
    other = write_base(tmp_path / "other", "qwen3", initializer_range=0.5)
    with pytest.raises(
        ConfigError, match=f"was made for the base {fingerprint(qwen3)}, this one is {fingerprint(other)}"
    ):
        say("merge", "--base", other, "--adapter", tmp_path / "a" / "actor", "--out", tmp_path / "m")


def test_a_wrong_dtype_is_refused(qwen3: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dtype must be one of float32, bfloat16, float16, got 'int8'"):
        say("merge", "--base", qwen3, "--adapter", tmp_path, "--out", tmp_path / "m", "--dtype", "int8")
