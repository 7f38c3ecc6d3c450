"""What training left becomes an adapter that is the live model, to the bit."""

import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from adapter_models import (
    ACTOR,
    CRITIC,
    FINGERPRINT,
    as_filed,
    bits,
    in_file,
    load_base,
    outputs,
    same_bits,
    saved_model,
    settings,
    trainable,
    trained,
    trainers_model,
    write_base,
)
from peft import PeftModel

from atlas_rl.adapters.build import add_adapter, load_adapter
from atlas_rl.adapters.export import SavedModel, export_adapter
from atlas_rl.adapters.settings import AdapterKind
from atlas_rl.adapters.writing import AdapterFacts
from atlas_rl.errors import ConfigError, TrainingError

KINDS = pytest.mark.parametrize("kind", [ACTOR, CRITIC])


def export(saved: SavedModel, out: Path, base: Path) -> AdapterFacts:
    return export_adapter(saved, out, base_dir=base, base_fingerprint=FINGERPRINT)


@KINDS
def test_the_adapter_loads_with_peft_and_gives_the_live_models_outputs(
    base: Path, tmp_path: Path, kind: AdapterKind
) -> None:
    live = trained(trainers_model(base, kind, seed=0))
    export(saved_model(base, kind), tmp_path / "out", base)
    assert same_bits(in_file(tmp_path / "out"), as_filed(trainable(live)))
    loaded = PeftModel.from_pretrained(load_base(base, kind), tmp_path / "out")
    assert torch.equal(outputs(loaded), outputs(live))
    assert not torch.equal(outputs(loaded), outputs(load_base(base, kind)))


@KINDS
def test_over_a_bf16_base_the_trainers_loader_gives_the_live_models_outputs(
    bf16_base: Path, tmp_path: Path, kind: AdapterKind
) -> None:
    live = trained(add_adapter(load_base(bf16_base, kind, torch.bfloat16), settings(kind), seed=0))
    export(saved_model(bf16_base, kind, tensors=trainable(live)), tmp_path / "out", bf16_base)
    loaded = load_adapter(load_base(bf16_base, kind, torch.bfloat16), tmp_path / "out", settings(kind)).eval()
    assert same_bits(trainable(loaded), trainable(live))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(outputs(loaded), outputs(live))


def test_the_facts_count_what_training_changed(qwen3: Path, tmp_path: Path) -> None:
    model = trainers_model(qwen3, ACTOR, seed=0)
    changed = [name for name in trainable(model) if ".lora_B." in name][:5]
    tensors = {name: torch.ones_like(t) if name in changed else t for name, t in trainable(model).items()}
    facts = export(saved_model(qwen3, tensors=tensors), tmp_path / "out", qwen3)
    assert (facts.num_tensors, facts.num_b, facts.num_nonzero_b) == (28, 14, 5)
    content = (tmp_path / "out" / "adapter_model.safetensors").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert facts.files["adapter_model.safetensors"] == digest
    assert facts.tensors == {
        name: hashlib.sha256(bits(tensor)[1]).hexdigest() for name, tensor in as_filed(tensors).items()
    }
    assert facts.line() == (
        "CAUSAL_LM, rank 4, 28 tensors, "
        f"{sum(t.numel() for t in tensors.values())} float32 values, 5 of 14 B non-zero, sha256 {digest}"
    )


def test_no_weight_of_the_base_is_needed(qwen3: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(qwen3 / "config.json", bare)
    export(saved_model(qwen3, CRITIC), tmp_path / "out", bare)
    assert "base_model.model.score.weight" in in_file(tmp_path / "out")


def refusal(error: type[Exception], saved: SavedModel, out: Path, base: Path) -> str:
    with pytest.raises(error) as caught:
        export(saved, out, base)
    assert list(out.parent.glob("*out*")) == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_actors_tensors_are_no_critic(qwen3: Path, tmp_path: Path) -> None:
    actor, critic = saved_model(qwen3, ACTOR).tensors, saved_model(qwen3, CRITIC).tensors
    text = refusal(TrainingError, saved_model(qwen3, CRITIC, tensors=actor), tmp_path / "out", qwen3)
    assert text.startswith("saved critic lacks base_model.model.score.bias (2 such), not so the base")
    text = refusal(TrainingError, saved_model(qwen3, ACTOR, tensors=critic), tmp_path / "out", qwen3)
    assert text.startswith("saved actor has base_model.model.score.bias (2 such), not so the base")


def test_another_rank_is_refused(qwen3: Path, tmp_path: Path) -> None:
    text = refusal(TrainingError, saved_model(qwen3, rank=8), tmp_path / "out", qwen3)
    assert "lora_A.weight is (4, 32)" in text
    assert "with rank 8 needs (8, 32)" in text


def test_other_targets_are_refused(qwen3: Path, tmp_path: Path) -> None:
    text = refusal(TrainingError, saved_model(qwen3, targets=("q_proj",)), tmp_path / "out", qwen3)
    assert text.startswith("saved actor has base_model.model.model.layers.0.mlp.down_proj.lora_A.weight (24 such)")
    text = refusal(ConfigError, saved_model(qwen3, targets=("q_proj", "wq")), tmp_path / "out", qwen3)
    assert "target 'wq' is no layer of it" in text


def test_a_base_of_other_shapes_is_refused(qwen3: Path, tmp_path: Path) -> None:
    wider = write_base(tmp_path / "wider", "qwen3", hidden_size=64)
    assert "needs (4, 64)" in refusal(TrainingError, saved_model(qwen3), tmp_path / "out", wider)


def test_a_base_of_other_weights_is_refused(qwen3: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"saved actor was trained on the base {FINGERPRINT}, {qwen3} is cdcd"):
        export_adapter(saved_model(qwen3), tmp_path / "out", base_dir=qwen3, base_fingerprint="cd" * 32)


def test_a_folder_that_is_not_empty_is_left_alone(qwen3: Path, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(ConfigError, match="is there and not empty; choose a new folder or remove it first"):
        export(saved_model(qwen3), tmp_path, qwen3)
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


def test_a_tensor_that_is_no_adapters_is_refused(qwen3: Path, tmp_path: Path) -> None:
    tensors = {**saved_model(qwen3).tensors, "model.norm.weight": torch.zeros(3)}
    text = refusal(TrainingError, saved_model(qwen3, tensors=tensors), tmp_path / "out", qwen3)
    assert text.startswith("tensor 'model.norm.weight' is neither base_model.model.LAYER.lora_A.default.weight")


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (float("nan"), torch.float32, "holds a NaN or an infinity; take an earlier step"),
        (float("inf"), torch.float32, "holds a NaN or an infinity; take an earlier step"),
        (1.0, torch.bfloat16, "is torch.bfloat16, must be float32; adapters train in float32"),
    ],
)
def test_values_that_no_adapter_trains_are_refused(
    qwen3: Path, tmp_path: Path, value: float, dtype: torch.dtype, message: str
) -> None:
    tensors = trainable(trainers_model(qwen3, ACTOR, seed=0))
    name = list(tensors)[3]
    tensors[name] = torch.full_like(tensors[name], value, dtype=dtype)
    text = refusal(TrainingError, saved_model(qwen3, tensors=tensors), tmp_path / "out", qwen3)
    assert text == f"adapter tensor {name.replace('.default', '')} {message}"
