"""The base of an adapter as shapes alone: no weight is read and no memory is taken."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForTokenClassification,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from atlas_rl.adapters.names import PREFIX, lora_names
from atlas_rl.adapters.settings import VALUE_HEAD, AdapterKind, AdapterSettings
from atlas_rl.adapters.value_models import register_value_models
from atlas_rl.errors import ConfigError, blame

Shapes = dict[str, tuple[int, ...]]
"""Name of a tensor in an adapter file to its shape."""


def empty_model(model_dir: Path, kind: AdapterKind) -> nn.Module:
    """The actor or the critic of a local model folder, every tensor on the device ``meta``.

    A model that also sees images is built whole, as the trainer builds it, so that layers have the same names.

    Raises:
        ConfigError: there is no config.json, or no such model for it.
    """
    if not (model_dir / "config.json").is_file():
        raise ConfigError(f"base {model_dir}: no config.json; give a local Hugging Face folder")
    with blame(ConfigError, f"base {model_dir}: cannot be built as {kind}"):
        config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
        model_class: Any = AutoModelForTokenClassification
        if kind is AdapterKind.CRITIC:
            register_value_models()
            config.num_labels = 1
        elif type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
            model_class = AutoModelForImageTextToText
        else:
            model_class = AutoModelForCausalLM
        with torch.device("meta"):
            model: nn.Module = model_class.from_config(config)
    return model


def target_layers(model: nn.Module, targets: Sequence[str], what: str) -> dict[str, nn.Linear]:
    """The linear layers that an adapter changes, by name, in the model's order.

    Args:
        model: Not yet wrapped by PEFT.
        targets: Last parts of names.
        what: The model, for messages.

    Raises:
        ConfigError: a target is no layer of the model, or one that is not linear.
    """
    found: dict[str, nn.Linear] = {}
    used = set()
    for name, layer in model.named_modules():
        hit = next((target for target in targets if f".{name}".endswith(f".{target}")), None)
        if hit is None:
            continue
        if not isinstance(layer, nn.Linear):
            raise ConfigError(f"{what}: target {hit!r} is {type(layer).__name__} {name}, not a linear layer; drop it")
        found[name] = layer
        used.add(hit)
    missing = sorted(set(targets) - used)
    if missing:
        known = sorted({name.rpartition(".")[2] for name, layer in model.named_modules() if type(layer) is nn.Linear})
        raise ConfigError(f"{what}: target {missing[0]!r} is no layer of it; its linear layers are {', '.join(known)}")
    return found


def value_head(model: nn.Module, what: str) -> nn.Linear:
    """The critic's last layer, [hidden] to one value.

    Raises:
        ConfigError: it has none, or one of another shape.
    """
    head = getattr(model, VALUE_HEAD, None)
    if not isinstance(head, nn.Linear) or head.out_features != 1:
        raise ConfigError(f"{what}: {VALUE_HEAD!r} must be a linear layer with one output, is {head}")
    return head


def adapter_shapes(model: nn.Module, settings: AdapterSettings, what: str) -> Shapes:
    """Every tensor that an adapter of this model must hold.

    Args:
        model: Not yet wrapped by PEFT; ``meta`` is enough.
        settings: Of the adapter.
        what: The model, for messages.

    Raises:
        ConfigError: a target is not in the model, or the critic has no head.
    """
    shapes: Shapes = {}
    for layer, linear in target_layers(model, settings.targets, what).items():
        a, b = lora_names(layer)
        shapes[a] = (settings.rank, linear.in_features)
        shapes[b] = (linear.out_features, settings.rank)
    if settings.kind is AdapterKind.CRITIC:
        head = value_head(model, what)
        shapes |= {f"{PREFIX}{VALUE_HEAD}.{name}": tuple(part.shape) for name, part in head.named_parameters()}
    return shapes
