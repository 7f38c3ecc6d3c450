"""A saved model becomes a PEFT adapter: no GPU, no weights of the base."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from atlas_rl.adapters.base import adapter_shapes, empty_model
from atlas_rl.adapters.names import file_name
from atlas_rl.adapters.out_folder import new_folder
from atlas_rl.adapters.settings import AdapterSettings
from atlas_rl.adapters.writing import AdapterFacts, write_adapter
from atlas_rl.errors import ConfigError, TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """What training left of the actor or the critic."""

    settings: AdapterSettings
    """What was trained."""
    base_fingerprint: str
    """sha256 (hex) of the base that it was trained on."""
    tensors: Mapping[str, torch.Tensor]
    """Every trainable tensor, whole, on the CPU, by the name that the model under training has for it."""


def export_adapter(saved: SavedModel, out_dir: Path, *, base_dir: Path, base_fingerprint: str) -> AdapterFacts:
    """Write the adapter of a saved model; its values are those that were saved, to the bit.

    Args:
        saved: The actor or the critic.
        out_dir: A new folder.
        base_dir: The base model; only its config.json is read.
        base_fingerprint: sha256 (hex) of that folder.

    Raises:
        ConfigError: ``out_dir`` is not empty, or the base is another than the one that was trained on.
        TrainingError: the tensors are not those of this base with these settings.
    """
    settings = saved.settings
    if saved.base_fingerprint != base_fingerprint:
        raise ConfigError(
            f"saved {settings.kind} was trained on the base {saved.base_fingerprint}, {base_dir} is "
            f"{base_fingerprint}; give the base of the run"
        )
    expected = adapter_shapes(empty_model(base_dir, settings.kind), settings, f"base {base_dir}")
    tensors = {file_name(name): tensor for name, tensor in saved.tensors.items()}
    for words, names in (("lacks", expected.keys() - tensors), ("has", tensors.keys() - expected)):
        if names:
            raise TrainingError(
                f"saved {settings.kind} {words} {sorted(names)[0]} ({len(names)} such), not so the base {base_dir} "
                f"with targets {list(settings.targets)}; give the base and the settings of the run"
            )
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise TrainingError(
                f"saved {settings.kind}: {name} is {tuple(tensors[name].shape)}, the base {base_dir} with rank "
                f"{settings.rank} needs {shape}; give the base and the settings of the run"
            )
    with new_folder(out_dir) as folder:
        return write_adapter(folder, settings, tensors, base=base_dir, base_fingerprint=base_fingerprint)
