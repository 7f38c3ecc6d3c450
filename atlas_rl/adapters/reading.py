"""Read an adapter's folder, and hold it against the settings of a run and against a base."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from atlas_rl.adapters.base import Shapes
from atlas_rl.adapters.names import CONFIG_FILE, FINGERPRINT, PREFIX, TENSOR_FILE, is_b, lora_names
from atlas_rl.adapters.settings import VALUE_HEAD, AdapterKind, AdapterSettings
from atlas_rl.errors import ConfigError

_T = TypeVar("_T")

_PLAIN_LORA: dict[str, tuple[Any, ...]] = {
    "alora_invocation_tokens": (None,),
    "alpha_pattern": ({}, None),
    "arrow_config": (None,),
    "bias": ("none",),
    "exclude_modules": (None, []),
    "fan_in_fan_out": (False,),
    "init_lora_weights": (True, False, "gaussian"),
    "kasa_config": (None,),
    "layer_replication": (None,),
    "layers_to_transform": (None,),
    "lora_bias": (False, None),
    "monteclora_config": (None,),
    "rank_pattern": ({}, None),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, []),
    "use_bdlora": (False, None),
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "use_rslora": (False, None),
}
"""Options of PEFT that make an adapter more than alpha / rank * B @ A, and the values that leave them off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFolder:
    """A folder that was looked at; its tensors are still on the disk."""

    path: Path
    settings: AdapterSettings
    base_fingerprint: str | None
    """What the adapter says of its base; None if it was not written here."""
    shapes: Shapes

    def check_base(self, fingerprint: str) -> None:
        """Refuse a base that the adapter was not made for.

        Raises:
            ConfigError: the fingerprints differ. An adapter that states none passes.
        """
        if self.base_fingerprint not in (None, fingerprint):
            raise ConfigError(
                f"adapter {self.path} was made for the base {self.base_fingerprint}, this one is {fingerprint}; "
                "give the base that it was trained on"
            )

    def check_shapes(self, expected: Shapes) -> None:
        """Refuse tensors that do not fit a base.

        Raises:
            ConfigError: one is missing, one too many, or one has another shape.
        """
        for words, names in (("lacks", expected.keys() - self.shapes), ("has", self.shapes.keys() - expected)):
            if names:
                raise ConfigError(
                    f"adapter {self.path} {words} {sorted(names)[0]} ({len(names)} such), not so its base; "
                    "give the base that it was trained on"
                )
        for name, shape in expected.items():
            if self.shapes[name] != shape:
                raise ConfigError(
                    f"adapter {self.path}: {name} is {self.shapes[name]}, its base needs {shape}; "
                    "give the base that it was trained on"
                )

    def load(self) -> dict[str, torch.Tensor]:
        """Every tensor, on the CPU, float32.

        Raises:
            ConfigError: a tensor is damaged.
        """
        return _open(self.path, lambda file: {name: file.get_tensor(name).float() for name in self.shapes})


def read_adapter(folder: Path) -> AdapterFolder:
    """Look at an adapter that ``init``, ``export`` or PEFT wrote.

    Raises:
        ConfigError: a file is missing or damaged, or the adapter is more than LoRA on named layers.
    """
    settings = _read_settings(folder)

    def look(file: Any) -> AdapterFolder:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        _check_names(folder, settings, shapes)
        for name, shape in shapes.items():
            rank = shape[0] if name.endswith(".lora_A.weight") else shape[1] if is_b(name) else settings.rank
            if rank != settings.rank:
                raise ConfigError(
                    f"adapter {folder}: {name} has rank {rank}, {CONFIG_FILE} says {settings.rank}; "
                    "copy both files again"
                )
        fingerprint = (file.metadata() or {}).get(FINGERPRINT)
        return AdapterFolder(path=folder, settings=settings, base_fingerprint=fingerprint, shapes=shapes)

    return _open(folder, look)


def _open(folder: Path, use: Callable[[Any], _T]) -> _T:
    path = folder / TENSOR_FILE
    try:
        with safe_open(path, "pt") as file:
            return use(file)
    except FileNotFoundError:
        raise ConfigError(f"adapter {folder}: no {TENSOR_FILE} there; give a folder that `lora export` wrote") from None
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path}: no whole safetensors file: {error}; copy it again") from error


def _check_names(folder: Path, settings: AdapterSettings, shapes: Shapes) -> None:
    """Every tensor is half of a pair on a target, or the head's, and every target has a pair."""
    layers = {name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in shapes if ".lora_" in name}
    needed = {name for layer in layers for name in lora_names(layer)}
    if settings.kind is AdapterKind.CRITIC:
        needed |= {f"{PREFIX}{VALUE_HEAD}.weight"}
    odd = sorted((needed ^ shapes.keys()) - {f"{PREFIX}{VALUE_HEAD}.bias"})
    if odd:
        words = "lacks" if odd[0] in needed else "has the unknown"
        raise ConfigError(f"adapter {folder}: {TENSOR_FILE} {words} tensor {odd[0]}; copy both files again")
    hit = {layer: next((t for t in settings.targets if f".{layer}".endswith(f".{t}")), None) for layer in layers}
    unasked = sorted(layer for layer, target in hit.items() if target is None)
    unmet = sorted(set(settings.targets) - set(hit.values()))
    if unasked or unmet:
        raise ConfigError(
            f"adapter {folder}: {TENSOR_FILE} does not fit the target_modules of {CONFIG_FILE}: "
            f"{(unasked or unmet)[0]} is in one alone; copy both files again"
        )


def _read_settings(folder: Path) -> AdapterSettings:
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"adapter {folder}: no {CONFIG_FILE} there; give a folder that `lora export` wrote") from None
    except ValueError as error:
        raise ConfigError(f"{path}: no JSON: {error}; copy it again") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ConfigError(f"{path}: must describe a LoRA adapter; give a folder that `lora export` wrote")
    for key, plain in _PLAIN_LORA.items():
        if key in config and config[key] not in plain:
            raise ConfigError(f"{path}: {key}={config[key]!r} is not supported; give LoRA on named layers alone")
    kinds = {"CAUSAL_LM": AdapterKind.ACTOR, "TOKEN_CLS": AdapterKind.CRITIC}
    kind = kinds.get(str(config.get("task_type")))
    if kind is None:
        raise ConfigError(f"{path}: task_type must be one of {', '.join(kinds)}, got {config.get('task_type')!r}")
    whole = set(config.get("modules_to_save") or ())
    # PEFT adds its own guess at a classifier's name to the list of a token classifier.
    if whole - {"classifier"} != ({VALUE_HEAD} if kind is AdapterKind.CRITIC else set()):
        raise ConfigError(
            f"{path}: modules_to_save={sorted(whole)} is not supported for {kind}; give an adapter of ours"
        )
    targets = config.get("target_modules")
    if not isinstance(targets, list):
        raise ConfigError(f"{path}: target_modules must be a list of names, got {targets!r}; list the layers")
    rank: Any = config.get("r")
    alpha: Any = config.get("lora_alpha")
    return AdapterSettings(kind=kind, rank=rank, alpha=alpha, targets=tuple(dict.fromkeys(targets)))
