"""Tiny bases with random weights, and what the trainer builds of them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, LlamaConfig, Qwen3Config
from typer.testing import CliRunner

from atlas_rl.adapters.export import SavedModel
from atlas_rl.adapters.settings import AdapterKind, AdapterSettings
from atlas_rl.cli.lora import lora_app
from atlas_rl.errors import AtlasError
from atlas_rl.models.tiny import TinyConfig

ACTOR, CRITIC = AdapterKind.ACTOR, AdapterKind.CRITIC
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FINGERPRINT = "ab" * 32
CLASSES = {ACTOR: AutoModelForCausalLM, CRITIC: AutoModelForTokenClassification}
_SHAPE = TinyConfig(hidden_size=32, intermediate_size=48)


def settings(kind: AdapterKind = ACTOR, *, rank: int = 4, targets: tuple[str, ...] = TARGETS) -> AdapterSettings:
    return AdapterSettings(kind=kind, rank=rank, alpha=8, targets=targets)


def write_base(
    folder: Path, family: str, *, dtype: torch.dtype = torch.float32, shard_size: str = "1GB", **changes: Any
) -> Path:
    sizes = {
        "vocab_size": 128,
        "hidden_size": _SHAPE.hidden_size,
        "intermediate_size": _SHAPE.intermediate_size,
        "num_hidden_layers": _SHAPE.num_layers,
        "num_attention_heads": _SHAPE.num_heads,
        "num_key_value_heads": _SHAPE.num_kv_heads,
        "max_position_embeddings": _SHAPE.max_positions,
        "initializer_range": _SHAPE.initializer_std,
        "head_dim": _SHAPE.head_dim,
        "tie_word_embeddings": family == "qwen3",
        **changes,
    }
    config: Any = Qwen3Config(**sizes) if family == "qwen3" else LlamaConfig(**sizes, attention_bias=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(folder, max_shard_size=shard_size)
    return folder


def load_base(folder: Path, kind: AdapterKind, dtype: torch.dtype = torch.float32) -> Any:
    more = {"num_labels": 1} if kind is CRITIC else {}
    return CLASSES[kind].from_pretrained(folder, dtype=dtype, attn_implementation="sdpa", **more).eval()


def trainers_model(base: Path, kind: AdapterKind, *, seed: int) -> PeftModel:
    """What the trainer's engine makes: PEFT after torch.manual_seed, over float32."""
    model = load_base(base, kind)
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM if kind is ACTOR else TaskType.TOKEN_CLS,
        r=4,
        lora_alpha=8,
        target_modules=list(TARGETS),
        modules_to_save=None if kind is ACTOR else ["score"],
        bias="none",
    )
    if kind is CRITIC:
        torch.nn.init.zeros_(model.score.weight)
        torch.nn.init.zeros_(model.score.bias)
    torch.manual_seed(seed)
    return get_peft_model(model, config)


def trained(model: PeftModel) -> PeftModel:
    """The same model with every trainable value drawn anew, as after many steps."""
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def trainable(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def in_file(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def as_filed(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.replace(".modules_to_save", "").replace(".default", ""): tensor for name, tensor in tensors.items()}


def same_bits(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and bits(left[name]) == bits(right[name]) for name in left
    )


def bits(tensor: torch.Tensor) -> tuple[tuple[int, ...], bytes]:
    return tuple(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def saved_model(base: Path, kind: AdapterKind = ACTOR, **changes: Any) -> SavedModel:
    """A model after many steps; ``changes`` to its settings or, as ``tensors``, to its tensors."""
    tensors = changes.pop("tensors", None) or trainable(trained(trainers_model(base, kind, seed=0)))
    return SavedModel(settings=settings(kind, **changes), base_fingerprint=FINGERPRINT, tensors=tensors)


def token_ids() -> torch.Tensor:
    """[2, 9] rows that no test chooses."""
    return torch.randint(0, 128, (2, 9), generator=torch.Generator().manual_seed(3))


def outputs(model: Any) -> torch.Tensor:
    """[2, 9, ...] logits of an actor, values of a critic."""
    with torch.no_grad():
        result: torch.Tensor = model(token_ids()).logits
    return result


def each_linear(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Linear]]:
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name.rpartition(".")[2] in TARGETS:
            yield name, layer


def say(*arguments: object) -> list[str]:
    """The lines that ``atlas-rl lora`` prints."""
    result = CliRunner().invoke(lora_app, [str(argument) for argument in arguments])
    if isinstance(result.exception, AtlasError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output.splitlines()
