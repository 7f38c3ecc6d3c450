"""A model gets its adapter: drawn from a seed, or read from a folder. The trainer and ``init`` share this code."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model
from torch import nn

from atlas_rl.adapters.base import adapter_shapes, target_layers
from atlas_rl.adapters.names import PREFIX, file_name
from atlas_rl.adapters.reading import read_adapter
from atlas_rl.adapters.settings import VALUE_HEAD, AdapterSettings
from atlas_rl.errors import ConfigError, TrainingError


def add_adapter(
    model: nn.Module,
    settings: AdapterSettings,
    *,
    seed: int,
    value_head_std: float = 0.0,
    value_head_seed: int | None = None,
    device: torch.device | None = None,
) -> PeftModel:
    """Freeze a model and give it a new adapter in float32.

    The values depend on the seed, the rank and the names and shapes of the layers; not on the dtype or the device of
    the base, nor on the state of torch's generator, which stays as it was. B is zero, so the model's outputs do not
    change; the critic's head starts at zero or as normal noise, its bias at zero.

    Args:
        model: Not yet wrapped by PEFT.
        settings: Of the adapter.
        seed: Of every A.
        value_head_std: Standard deviation of the head's weights.
        value_head_seed: Of the head's weights; ``seed`` if none is given.
        device: Where the adapter goes; the base's if none is given.

    Raises:
        ConfigError: a target is not in the model, the critic has no head, or its spread is negative or not finite.
    """
    if not 0 <= value_head_std < math.inf:
        raise ConfigError(f"lora value_head_std must be at least 0 and finite, got {value_head_std}")
    target = device or _device(model)
    peft_model = _wrap(model, settings, seed)
    head = torch.Generator().manual_seed(seed if value_head_seed is None else value_head_seed)
    for name, parameter in _trainable(peft_model).items():
        value = parameter.detach()
        if file_name(name).startswith(f"{PREFIX}{VALUE_HEAD}."):
            value = torch.zeros(parameter.shape)
            if name.endswith(".weight") and value_head_std > 0:
                value = value_head_std * torch.randn(parameter.shape, generator=head)
        _put(peft_model, name, value.to(target))
    return peft_model


def load_adapter(
    model: nn.Module, folder: Path, settings: AdapterSettings, *, device: torch.device | None = None
) -> PeftModel:
    """Freeze a model and give it the adapter of a folder, float32 to the bit over a base of any dtype.

    ``PeftModel.from_pretrained`` rounds a critic's head to the dtype of the base.

    Args:
        model: Not yet wrapped by PEFT.
        folder: That ``init`` or ``export`` wrote, or PEFT.
        settings: What the run trains; the folder must hold the same.
        device: Where the adapter goes; the base's if none is given.

    Raises:
        ConfigError: the folder holds another kind of adapter, rank, alpha or targets, or tensors of another base.
    """
    adapter = read_adapter(folder)
    for what in ("kind", "rank", "alpha", "targets"):
        stored, asked = getattr(adapter.settings, what), getattr(settings, what)
        if stored != asked:
            raise ConfigError(f"adapter {folder}: has {what} {stored}, asked for {what} {asked}; set one to the other")
    adapter.check_shapes(adapter_shapes(model, settings, f"the {settings.kind}'s base"))
    target = device or _device(model)
    peft_model = _wrap(model, settings, seed=0)
    values = adapter.load()
    for name in _trainable(peft_model):
        _put(peft_model, name, values[file_name(name)].to(target))
    return peft_model


def adapter_values(model: PeftModel) -> dict[str, torch.Tensor]:
    """The trainable tensors of a model that is not sharded, by their names in an adapter file."""
    return {file_name(name): parameter.detach() for name, parameter in _trainable(model).items()}


def _wrap(model: nn.Module, settings: AdapterSettings, seed: int) -> PeftModel:
    expected = adapter_shapes(model, settings, f"the {settings.kind}'s base")
    layers = target_layers(model, settings.targets, f"the {settings.kind}'s base")
    with torch.random.fork_rng(devices=[]), _float32_stand_ins(layers):
        torch.manual_seed(seed)
        peft_model = get_peft_model(model, settings.lora_config())
    made = {file_name(name): tuple(parameter.shape) for name, parameter in _trainable(peft_model).items()}
    if made != expected:
        odd = sorted(set(made) ^ set(expected)) or [name for name in made if made[name] != expected[name]]
        raise TrainingError(f"PEFT made other tensors than the targets {list(settings.targets)} ask for: {odd[:3]}")
    return peft_model


@contextmanager
def _float32_stand_ins(layers: Mapping[str, nn.Linear]) -> Iterator[None]:
    """Show each layer's weight as float32 zeros on the CPU that take no memory, and freeze the layer.

    PEFT rounds a new adapter to the dtype of the weight that it stands beside, and on the device ``meta`` makes none.
    """
    weights = {name: layer.weight for name, layer in layers.items()}
    for layer in layers.values():
        layer.weight = nn.Parameter(torch.zeros(()).expand(layer.weight.shape), requires_grad=False)
    try:
        yield
    finally:
        for name, layer in layers.items():
            layer.weight = weights[name].requires_grad_(False)


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _put(model: nn.Module, name: str, value: torch.Tensor) -> None:
    module, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(module), leaf, nn.Parameter(value))


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
