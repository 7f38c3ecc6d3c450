"""A model out of a saved step, whatever number of ranks saved it."""

from pathlib import Path

from atlas_rl.adapters.export import SavedModel
from atlas_rl.adapters.settings import AdapterKind, AdapterSettings
from atlas_rl.checkpoint.manifest import read_manifest
from atlas_rl.checkpoint.whole import whole_trainable
from atlas_rl.errors import ConfigError


def read_saved_model(step_folder: Path, kind: AdapterKind) -> SavedModel:
    """The actor or the critic of a committed step.

    Args:
        step_folder: CHECKPOINTS/global_step_N.
        kind: Which model.

    Raises:
        ConfigError: the step has no such model, or trained it whole.
        TrainingError: the step is missing or damaged.
    """
    tensors = whole_trainable(step_folder, kind)
    identity = read_manifest(step_folder).identity.models[kind]
    if identity.lora is None:
        raise ConfigError(f"{step_folder}: the {kind} was trained whole, without an adapter; there is none to export")
    alpha = identity.lora.alpha
    settings = AdapterSettings(
        kind=kind,
        rank=identity.lora.rank,
        alpha=int(alpha) if alpha == int(alpha) else alpha,  # type: ignore[arg-type]  # refused by the settings
        targets=identity.lora.target_modules,
    )
    return SavedModel(settings=settings, base_fingerprint=identity.base_fingerprint, tensors=tensors)
