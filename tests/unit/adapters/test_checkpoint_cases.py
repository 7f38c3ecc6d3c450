"""The ck cases of the shared cases: what happens to a critic's head when an adapter is added, and when it is saved."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import Qwen2Config, Qwen2ForTokenClassification

from atlas_rl.adapters.build import add_adapter
from atlas_rl.adapters.settings import AdapterKind, AdapterSettings
from atlas_rl.checkpoint.engine_state import trainable_parameters
from atlas_rl.errors import ConfigError

EXPLICIT = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, Any]:
    lines = (shared / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    found = {case["id"]: case for case in map(json.loads, lines) if case["id"].startswith("ck-")}
    assert sorted(found) == ["ck-01", "ck-02"], "a new case has no test yet"
    return found


def critic() -> Qwen2ForTokenClassification:
    config = Qwen2Config(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_labels=1,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen2ForTokenClassification(config)


def heads(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: one for name, one in trainable_parameters(model).items() if ".score." in f".{name}"}


def train_once(model: torch.nn.Module) -> None:
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.1)
    (model(torch.arange(8)[None]).logits - 1).square().mean().backward()
    optimizer.step()


def add(targets: tuple[str, ...]) -> torch.nn.Module:
    settings = AdapterSettings(kind=AdapterKind.CRITIC, rank=2, alpha=4, targets=targets)
    return add_adapter(critic(), settings, seed=0, value_head_std=0.0, value_head_seed=0)


def test_the_head_of_our_critic_trains_whole_and_the_settings_that_lose_it_are_refused(cases: dict[str, Any]):
    settings = cases["ck-02"]["input"]["settings"]
    assert settings == [
        ["CAUSAL_LM", "all-linear"], ["TOKEN_CLS", "all-linear"], ["TOKEN_CLS", "q,k,v,o,gate,up,down"],
        ["none", "all-linear"], ["none", "q,k,v,o,gate,up,down"],
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="all-linear"):
        add(("all-linear",))
    model = add(EXPLICIT)
    before = {name: one.detach().clone() for name, one in heads(model).items()}
    assert {name.split("score.")[1] for name in before} == {
        "modules_to_save.default.weight",
        "modules_to_save.default.bias",
    }
    train_once(model)
    assert all((one != before[name]).any() for name, one in heads(model).items())


def test_peft_alone_trains_a_critic_whose_head_is_frozen_without_a_word(cases: dict[str, Any]):
    """Why the trainer compares the head's digests around its first update: nothing else would say."""
    assert cases["ck-02"]["expected"]["observed"][-1] == "head fully frozen at random init"
    model = get_peft_model(critic(), LoraConfig(target_modules=list(EXPLICIT), r=2))
    train_once(model)
    assert heads(model) == {}
    with pytest.raises(AttributeError, match="prepare_inputs_for_generation"):
        get_peft_model(critic(), LoraConfig(task_type=TaskType.CAUSAL_LM, target_modules=list(EXPLICIT), r=2))


def test_what_trains_is_chosen_by_whether_it_trains_and_not_by_its_name(cases: dict[str, Any]):
    names = list(trainable_parameters(add(EXPLICIT)))
    kept = [name for name in names if "lora_" in name or ".adapter_" in name]
    lost = [name for name in names if name not in kept]
    wanted = cases["ck-01"]["input"]["critic_trainable"]
    assert lost == [name for name in wanted if name.startswith("base_model.")]
    assert cases["ck-01"]["expected"]["saved"] == "all four"
    assert {part for name in kept for part in ("lora_A", "lora_B") if part in name} == {"lora_A", "lora_B"}
