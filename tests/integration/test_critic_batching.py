"""The critic's batching keys reach the engine that verl's own set-up would build, and split its batches."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atlas_rl.models.tokenizer import train_tokenizer

PROGRAM = Path(__file__).parent / "critic_engine.py"
MODEL = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
BY_TOKENS = ("critic.ppo_max_token_len_per_gpu=50", "critic.forward_max_token_len_per_gpu=100")
BY_ROWS = (
    "critic.use_dynamic_bsz=false",
    "critic.ppo_micro_batch_size_per_gpu=2",
    "critic.forward_micro_batch_size_per_gpu=4",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("critic") / "model"
    train_tokenizer(['\n{"name": "explore", "arguments": {}}\n'], vocab_size=300).save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


def critic(model: Path, trainer: str, *keys: str) -> dict[str, Any]:
    """What the critic's worker would be built from, in a process of its own."""
    environment = os.environ | {
        "VERL_USE_EXTERNAL_MODULES": "atlas_rl.training.plugin", "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    given = ["atlas.run.id=r", "data.train_files=x", "data.val_files=x", f"actor_rollout_ref.model.path={model}"]
    command = [sys.executable, str(PROGRAM), trainer, "experiment=urn_demo", *given, *keys]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_verl_alone_reads_neither_budget_and_packs_by_tokens_whatever_is_asked(model: Path) -> None:
    found = critic(model, "plain", *BY_ROWS, *BY_TOKENS)
    assert (found["dynamic"], found["tokens"], found["rows"]) == (True, [32768, 32768], [None, None])


@pytest.mark.slow
def test_each_pass_of_the_critic_packs_up_to_its_own_budget(model: Path) -> None:
    found = critic(model, "ours", *BY_TOKENS, "critic.optim.clip_grad=0.25")
    assert (found["model_type"], found["dynamic"], found["tokens"]) == ("value_model", True, [50, 100])
    assert [sum(rows) <= 50 for rows in found["update"]] == [True] * len(found["update"])
    assert [sum(rows) <= 100 for rows in found["values"]] == [True] * len(found["values"])
    assert len(found["update"]) >= 4
    assert len(found["values"]) in (2, 3)
    assert found["clip"] == 0.25
    assert found["restored"] is True


@pytest.mark.slow
def test_each_pass_of_the_critic_counts_its_own_rows(model: Path) -> None:
    found = critic(model, "ours", *BY_ROWS)
    assert (found["dynamic"], found["rows"]) == (False, [2, 4])
    assert found["update"] == [[10, 20], [30, 40], [10, 20], [30, 40]]
    assert found["values"] == [[10, 20, 30, 40], [10, 20, 30, 40]]
