"""A mini-batch without a token to learn from is no update, and the engine says so."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "applied_updates.py"


@pytest.mark.slow
def test_a_mini_batch_without_a_token_moves_nothing_and_is_counted(tmp_path: Path):
    # A process of its own: verl reads its platform from the environment when it is imported.
    environment: dict[str, Any] = os.environ | {
        "VERL_USE_EXTERNAL_MODULES": "atlas_rl.training.plugin", "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    command = [sys.executable, str(PROGRAM), str(tmp_path / "model")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "empty": [0.0], "empty_moved": False,
        "mixed": [1.0, 0.0, 1.0], "mixed_moved": True, "norms_finite": [True, False, True],
    }  # fmt: skip
