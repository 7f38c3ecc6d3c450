"""The adapters that training starts from are those that the trainer would draw itself."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_models import (
    ACTOR,
    CRITIC,
    FINGERPRINT,
    TARGETS,
    as_filed,
    bits,
    in_file,
    load_base,
    outputs,
    same_bits,
    settings,
    trainable,
    trainers_model,
)
from peft import PeftModel

from atlas_rl.adapters.base import empty_model
from atlas_rl.adapters.build import add_adapter
from atlas_rl.adapters.init import init_adapters
from atlas_rl.adapters.settings import AdapterKind
from atlas_rl.errors import ConfigError

KINDS = pytest.mark.parametrize("kind", [ACTOR, CRITIC])


def start(base: Path, out: Path, **changes: Any) -> Any:
    given: dict[str, Any] = {"rank": 4, "alpha": 8, "targets": TARGETS, "seed": 11, **changes}
    return init_adapters(base, out, base_fingerprint=FINGERPRINT, **given)


@KINDS
def test_the_values_are_those_that_the_trainer_draws_from_the_seed(
    base: Path, tmp_path: Path, kind: AdapterKind
) -> None:
    start(base, tmp_path / "out")
    assert same_bits(in_file(tmp_path / "out" / kind), as_filed(trainable(trainers_model(base, kind, seed=11))))


@KINDS
def test_a_bf16_base_gets_the_same_float32_values(base: Path, tmp_path: Path, kind: AdapterKind) -> None:
    start(base, tmp_path / "out", value_head_std=0.5)
    model = add_adapter(load_base(base, kind, torch.bfloat16), settings(kind), seed=11, value_head_std=0.5)
    assert same_bits(as_filed(trainable(model)), in_file(tmp_path / "out" / kind))
    frozen = {parameter.dtype for parameter in model.parameters() if not parameter.requires_grad}
    assert frozen == {torch.bfloat16}


@KINDS
def test_adding_an_adapter_leaves_the_weights_of_the_base_and_the_generator_alone(
    base: Path, kind: AdapterKind
) -> None:
    model = load_base(base, kind)
    before = {name: bits(parameter) for name, parameter in model.named_parameters()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    wrapped = add_adapter(model, settings(kind), seed=11)
    assert torch.rand(1) == expected
    after = {
        name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".original_module", ""): bits(value)
        for name, value in wrapped.named_parameters()
        if not value.requires_grad
    }
    assert after == before


@KINDS
def test_an_adapter_follows_its_base_to_the_meta_device(base: Path, kind: AdapterKind) -> None:
    model = add_adapter(empty_model(base, kind), settings(kind), seed=11)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert {name: value.shape for name, value in trainable(model).items()} == {
        name: value.shape for name, value in trainable(trainers_model(base, kind, seed=0)).items()
    }


def test_no_weight_of_the_base_is_read(qwen3: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(qwen3 / "config.json", bare)
    assert start(bare, tmp_path / "a")[ACTOR].tensors == start(qwen3, tmp_path / "b")[ACTOR].tensors


def test_a_new_adapter_changes_no_logit_and_a_new_critic_says_zero(base: Path, tmp_path: Path) -> None:
    start(base, tmp_path / "out")
    actor = PeftModel.from_pretrained(load_base(base, ACTOR), tmp_path / "out" / "actor")
    assert torch.equal(outputs(actor), outputs(load_base(base, ACTOR)))
    critic = PeftModel.from_pretrained(load_base(base, CRITIC), tmp_path / "out" / "critic")
    assert torch.equal(outputs(critic), torch.zeros(2, 9, 1))


def test_a_head_with_a_spread_is_drawn_from_its_seed(qwen3: Path, tmp_path: Path) -> None:
    start(qwen3, tmp_path / "out", value_head_std=0.25)
    head = in_file(tmp_path / "out" / "critic")["base_model.model.score.weight"]
    assert torch.equal(head, 0.25 * torch.randn(1, 32, generator=torch.Generator().manual_seed(11)))
    assert not in_file(tmp_path / "out" / "critic")["base_model.model.score.bias"].any()


def test_the_report_says_what_is_in_the_files(qwen3: Path, tmp_path: Path) -> None:
    start(qwen3, tmp_path / "out")
    report = json.loads((tmp_path / "out" / "init_report.json").read_text())
    assert report["base"] == {"path": str(qwen3), "fingerprint": FINGERPRINT}
    assert (report["seed"], report["value_head_std"]) == (11, 0.0)
    for kind, task_type, num_tensors in (("actor", "CAUSAL_LM", 28), ("critic", "TOKEN_CLS", 30)):
        folder, said = tmp_path / "out" / kind, report["adapters"][kind]
        tensors = in_file(folder)
        assert said["tensors"] == {name: hashlib.sha256(bits(tensors[name])[1]).hexdigest() for name in sorted(tensors)}
        assert said["files"] == {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in ("adapter_config.json", "adapter_model.safetensors")
        }
        assert said["num_values"] == sum(tensor.numel() for tensor in tensors.values())
        plain = ("task_type", "rank", "alpha", "dtype", "num_tensors", "num_b", "num_nonzero_b", "base_fingerprint")
        assert [said[key] for key in plain] == [task_type, 4, 8, "float32", num_tensors, 14, 0, FINGERPRINT]
        assert said["target_modules"] == sorted(TARGETS)
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 0}, "lora rank must be a whole number of at least 1, got 0"),
        ({"alpha": -1}, "lora alpha must be a whole number of at least 1, got -1"),
        ({"targets": ()}, "lora targets must be names of linear layers, got []"),
        ({"targets": ("q_proj", "")}, "lora targets must be names of linear layers, got ['q_proj', '']"),
        ({"targets": ("q_proj", "q_proj")}, "lora targets name a layer twice: ['q_proj', 'q_proj']; name each once"),
        ({"targets": ("q_proj", "score")}, "lora targets name the value head 'score', which trains whole"),
        (
            {"targets": ("q_proj", "c_attn")},
            "the actor's base: target 'c_attn' is no layer of it; its linear layers are",
        ),
        ({"targets": ("lm_head",)}, "the critic's base: target 'lm_head' is no layer of it"),
        ({"targets": ("q_norm",)}, "the actor's base: target 'q_norm' is Qwen3RMSNorm model.layers.0.self_attn.q_norm"),
        ({"value_head_std": -0.1}, "lora value_head_std must be at least 0 and finite, got -0.1"),
        ({"value_head_std": float("nan")}, "lora value_head_std must be at least 0 and finite, got nan"),
    ],
)
def test_wrong_settings_are_refused_in_one_line_and_leave_nothing(
    qwen3: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        start(qwen3, tmp_path / "out", **changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(qwen3: Path, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(ConfigError, match="is there and not empty; choose a new folder or remove it first"):
        start(qwen3, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_a_base_without_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"base {tmp_path}/none: no config.json; give a local Hugging Face folder"):
        start(tmp_path / "none", tmp_path / "out")
