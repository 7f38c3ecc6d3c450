"""A merged folder is base plus adapter, rounded once, and loads as a model."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_models import (
    ACTOR,
    FINGERPRINT,
    TARGETS,
    bits,
    each_linear,
    in_file,
    load_base,
    outputs,
    saved_model,
    trained,
    trainers_model,
    write_base,
)
from peft import PeftModel
from safetensors.torch import load_file, save_file

from atlas_rl.adapters.export import export_adapter
from atlas_rl.adapters.init import init_adapters
from atlas_rl.adapters.merge import MergeFacts, merge_adapter
from atlas_rl.errors import ConfigError


def trained_adapter(base: Path, out: Path) -> Path:
    export_adapter(saved_model(base), out, base_dir=base, base_fingerprint=FINGERPRINT)
    return out


def merge(base: Path, adapter: Path, out: Path, dtype: torch.dtype | None = None) -> MergeFacts:
    return merge_adapter(base, adapter, out, dtype, base_fingerprint=FINGERPRINT)


def peft_merged(base: Path, adapter: Path, dtype: torch.dtype = torch.float32) -> Any:
    return PeftModel.from_pretrained(load_base(base, ACTOR, dtype), adapter).merge_and_unload()


def stored(folder: Path) -> dict[str, torch.Tensor]:
    files = [load_file(path) for path in sorted(folder.glob("*.safetensors"))]
    return {name: tensor for content in files for name, tensor in content.items()}


def changes(adapter: Path) -> dict[str, torch.Tensor]:
    """Name of a weight of the base to alpha / rank * B @ A, in float32."""
    tensors = in_file(adapter)
    found = {}
    for name, b in tensors.items():
        if name.endswith("lora_B.weight"):
            a = tensors[name.replace("lora_B", "lora_A")]
            found[name.removeprefix("base_model.model.").replace(".lora_B", "")] = (b @ a) * (8 / 4)
    return found


def test_float32_is_what_peft_merges_to_the_bit(base: Path, tmp_path: Path) -> None:
    adapter = trained_adapter(base, tmp_path / "adapter")
    facts = merge(base, adapter, tmp_path / "out")
    expected = peft_merged(base, adapter)
    merged = load_base(tmp_path / "out", ACTOR)
    assert {name: bits(value) for name, value in merged.named_parameters()} == {
        name: bits(value) for name, value in expected.named_parameters()
    }
    assert torch.equal(outputs(merged), outputs(expected))
    live = outputs(PeftModel.from_pretrained(load_base(base, ACTOR), adapter))
    torch.testing.assert_close(outputs(merged), live, rtol=1e-5, atol=1e-4)
    assert facts.num_merged == len(list(each_linear(merged))) == 14
    assert facts.base_stated


def test_a_bf16_base_in_several_files_is_rounded_once(bf16_base: Path, tmp_path: Path) -> None:
    adapter = trained_adapter(bf16_base, tmp_path / "adapter")
    facts = merge(bf16_base, adapter, tmp_path / "out")
    assert len(facts.files) > 2
    before, after, delta = stored(bf16_base), stored(tmp_path / "out"), changes(adapter)
    assert len(delta) == facts.num_merged == 14
    assert facts.num_copied == len(before) - 14
    exact = {name: before[name].float() + change for name, change in delta.items()}
    assert {name: bits(value) for name, value in after.items()} == {
        name: bits(exact[name].bfloat16() if name in exact else value) for name, value in before.items()
    }
    expected = peft_merged(bf16_base, adapter, torch.bfloat16)
    merged = load_base(tmp_path / "out", ACTOR, torch.bfloat16)
    assert {name: bits(value) for name, value in merged.named_parameters()} == {
        name: bits(value) for name, value in expected.named_parameters()
    }


def test_a_bf16_base_can_be_merged_in_float32(bf16_base: Path, tmp_path: Path) -> None:
    adapter = trained_adapter(bf16_base, tmp_path / "adapter")
    merge(bf16_base, adapter, tmp_path / "out", torch.float32)
    before, after, delta = stored(bf16_base), stored(tmp_path / "out"), changes(adapter)
    assert {name: bits(value) for name, value in after.items()} == {
        name: bits(value.float() + delta[name] if name in delta else value.float()) for name, value in before.items()
    }
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == "float32"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in after.values())
    assert index["weight_map"] == json.loads((bf16_base / "model.safetensors.index.json").read_text())["weight_map"]


def test_an_untrained_adapter_leaves_every_value(bf16_base: Path, tmp_path: Path) -> None:
    init_adapters(bf16_base, tmp_path / "init", 4, 8, TARGETS, 0, base_fingerprint=FINGERPRINT)
    merge(bf16_base, tmp_path / "init" / "actor", tmp_path / "out")
    before, after = stored(bf16_base), stored(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_other_files_travel_and_other_weights_do_not(qwen3: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(qwen3, base)
    (base / "tokenizer.json").write_text("{}")
    (base / "pytorch_model.bin").write_bytes(b"old")
    (base / "original.safetensors").write_bytes(b"old")
    (base / "onnx").mkdir()
    facts = merge(base, trained_adapter(base, tmp_path / "adapter"), tmp_path / "out")
    assert facts.left_out == ("onnx", "original.safetensors", "pytorch_model.bin")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}
    assert (tmp_path / "out" / "config.json").read_bytes() == (base / "config.json").read_bytes()
    digest = hashlib.sha256((tmp_path / "out" / "model.safetensors").read_bytes()).hexdigest()
    assert facts.files == {"model.safetensors": digest}


def test_an_adapter_that_does_not_name_its_base_is_compared_by_shape(qwen3: Path, tmp_path: Path) -> None:
    trained(trainers_model(qwen3, ACTOR, seed=0)).save_pretrained(tmp_path / "adapter")
    assert not merge(qwen3, tmp_path / "adapter", tmp_path / "out").base_stated
    wider = write_base(tmp_path / "wider", "qwen3", intermediate_size=64)
    text = refusal(lambda: merge(wider, tmp_path / "adapter", tmp_path / "no"), tmp_path / "no")
    assert "changes model.layers.0.mlp" in text
    assert text.endswith("give the base that it was trained on")


def refusal(action: Callable[[], object], out: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        action()
    assert not out.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_critic_cannot_be_merged(qwen3: Path, tmp_path: Path) -> None:
    init_adapters(qwen3, tmp_path / "init", 4, 8, TARGETS, 0, base_fingerprint=FINGERPRINT)
    text = refusal(lambda: merge(qwen3, tmp_path / "init" / "critic", tmp_path / "out"), tmp_path / "out")
    assert text == f"adapter {tmp_path}/init/critic is a critic's; only an actor's can be merged"


def test_a_base_with_another_fingerprint_is_refused(qwen3: Path, tmp_path: Path) -> None:
    adapter, out = trained_adapter(qwen3, tmp_path / "adapter"), tmp_path / "out"
    text = refusal(lambda: merge_adapter(qwen3, adapter, out, base_fingerprint="cd" * 32), out)
    assert f"was made for the base {FINGERPRINT}, this one is {'cd' * 32}" in text


def test_a_base_with_fewer_layers_is_refused(qwen3: Path, tmp_path: Path) -> None:
    adapter, out = trained_adapter(qwen3, tmp_path / "adapter"), tmp_path / "out"
    shallow = write_base(tmp_path / "shallow", "qwen3", num_hidden_layers=1)
    text = refusal(lambda: merge(shallow, adapter, out), out)
    assert "changes model.layers.1.mlp.down_proj (7 such), which no weight file of the base holds" in text


def test_a_missing_or_damaged_file_of_the_base_is_named(bf16_base: Path, tmp_path: Path) -> None:
    adapter, out = trained_adapter(bf16_base, tmp_path / "adapter"), tmp_path / "out"
    base = tmp_path / "base"
    shutil.copytree(bf16_base, base)
    last = sorted(base.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1])
    assert f"{last}: no whole safetensors file" in refusal(lambda: merge(base, adapter, out), out)
    last.unlink()
    assert f"base {base}: no {last.name} there; copy it too" in refusal(lambda: merge(base, adapter, out), out)


def test_a_quantised_base_is_refused(qwen3: Path, tmp_path: Path) -> None:
    adapter, out, base = trained_adapter(qwen3, tmp_path / "adapter"), tmp_path / "out", tmp_path / "base"
    shutil.copytree(qwen3, base)
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = load_file(base / "model.safetensors")
    save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, base / "model.safetensors")
    text = refusal(lambda: merge(base, adapter, out), out)
    assert f"{name} is stored as torch.float8_e4m3fn; give a base that is not quantised" in text


def test_values_that_float16_cannot_hold_are_refused(qwen3: Path, tmp_path: Path) -> None:
    adapter, out, base = trained_adapter(qwen3, tmp_path / "adapter"), tmp_path / "out", tmp_path / "base"
    shutil.copytree(qwen3, base)
    tensors = load_file(base / "model.safetensors")
    tensors["model.norm.weight"][0] = 1e5
    save_file(tensors, base / "model.safetensors")
    text = refusal(lambda: merge(base, adapter, out, torch.float16), out)
    assert "model.norm.weight has values too large for float16; merge to bfloat16" in text


def test_an_output_head_that_is_the_embedding_cannot_be_merged(qwen3: Path, tmp_path: Path) -> None:
    head = {"lora_A": torch.ones(4, 32), "lora_B": torch.ones(128, 4)}
    adapter, out = trained_adapter(qwen3, tmp_path / "adapter"), tmp_path / "out"
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["lm_head"]}))
    save_file(
        {f"base_model.model.lm_head.{name}.weight": value for name, value in head.items()},
        adapter / "adapter_model.safetensors",
    )
    text = refusal(lambda: merge(qwen3, adapter, out), out)
    assert text == f"base {qwen3} ties lm_head to its embedding, so the adapter of lm_head cannot be merged"


def test_a_folder_that_is_not_empty_is_left_alone(qwen3: Path, tmp_path: Path) -> None:
    adapter = trained_adapter(qwen3, tmp_path / "adapter")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "note").write_text("mine")
    with pytest.raises(ConfigError, match="out is there and not empty; choose a new folder or remove it first"):
        merge(qwen3, adapter, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["note"]
