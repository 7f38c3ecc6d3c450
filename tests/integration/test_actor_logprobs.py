"""The actor's log-probabilities, entropies and gradients through verl's FSDP2 engine, against a plain forward pass."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "actor_logprobs.py"


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_the_chunked_head_agrees_with_a_plain_softmax_over_the_legal_sets(tmp_path: Path, packed: bool):
    # A process of its own: verl reads its platform from the environment when it is imported.
    environment: dict[str, Any] = os.environ | {
        "VERL_USE_EXTERNAL_MODULES": "atlas_rl.training.plugin", "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    command = [sys.executable, str(PROGRAM), str(tmp_path / "model"), str(packed).lower()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "actor log-probs: all agree"
