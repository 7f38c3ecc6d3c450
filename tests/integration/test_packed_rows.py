"""Packed rows against separate ones through verl's FSDP2 engine, for each family of models, actor and critic."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "packed_rows.py"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program found, by case."""
    # A process of its own: verl reads its platform from the environment when it is imported.
    environment: dict[str, Any] = os.environ | {
        "VERL_USE_EXTERNAL_MODULES": "atlas_rl.training.plugin", "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    command = [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("models"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["case"]: line for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "qwen3 actor", "qwen3 critic", "llama actor", "llama critic", "qwen3_5_text actor", "qwen3_5_text critic",
        "qwen3_5_moe_text critic", "qwen3_next actor", "qwen3_5 actor", "qwen3_5 critic",
        "qwen3_5_text actor after qwen3_5", "qwen3_5 actor padded",
    ],
)  # fmt: skip
def test_a_row_gets_the_same_packed_and_alone(cases: dict[str, Any], case: str):
    found = cases[case]
    assert found["message"] is None
    assert max(found["differences"]) < 3e-6
    assert max(found["influences"]) < 1e-6
    assert 0 < found["tolerance"] < 3e-5
    assert found["scale"] > 1
    assert found["is_packed"] is (case != "qwen3_5 actor padded")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "at_least"),
    [
        ("qwen3_5_text actor", 0.1), ("qwen3_5_text critic", 0.1), ("qwen3_5_moe_text critic", 0.1),
        ("qwen3_next actor", 0.1), ("qwen3_5 actor", 1e-3), ("qwen3_5 critic", 0.1),
    ],
)  # fmt: skip
def test_what_verl_does_leaks_and_stops_the_run(cases: dict[str, Any], case: str, at_least: float):
    found = cases[f"{case} as verl does"]
    family, role = case.split()
    assert max(found["differences"]) > at_least
    assert max(found["influences"]) > at_least
    section = "critic" if role == "critic" else "actor_rollout_ref"
    assert found["message"].startswith(f"{role} {family} (")
    assert found["message"].endswith(f"rows leak; set {section}.model.use_remove_padding=false")
    assert "\n" not in found["message"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["qwen3 actor", "qwen3 critic", "llama actor", "llama critic"])
def test_a_model_that_is_made_to_leak_is_found(cases: dict[str, Any], case: str):
    found = cases[f"{case} with rows forgotten"]
    assert "rows leak; set" in found["message"]
    assert "another attention than sdpa" in found["message"]
    assert max(found["differences"]) > 0.1


@pytest.mark.slow
def test_a_leak_smaller_than_the_rounding_of_bf16_is_found(cases: dict[str, Any]):
    assert cases["qwen3_5 actor bf16"]["message"] is None
    leaking = cases["qwen3_5 actor bf16 as verl does"]
    assert max(leaking["differences"]) < leaking["tolerance"]
    assert "rows leak" in leaking["message"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["qwen3_5_text actor", "qwen3_next actor", "qwen3_5 actor"])
def test_gradients_are_those_of_separate_rows(cases: dict[str, Any], case: str):
    assert cases[f"{case} gradient"]["gradient"] < 1e-5
