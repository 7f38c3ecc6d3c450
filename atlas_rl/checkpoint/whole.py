"""A model's trainable tensors put together from the parts of all ranks: what an export of any world size reads."""

from pathlib import Path

import torch

from atlas_rl.checkpoint.reading import StepFiles
from atlas_rl.checkpoint.tensors import TensorSpec
from atlas_rl.errors import ConfigError, TrainingError


def whole_trainable(step_folder: Path, model: str) -> dict[str, torch.Tensor]:
    """Every trainable tensor of a model by name, whole, on the CPU, with the bits that the ranks had.

    Raises:
        ConfigError: the step has no such model.
        TrainingError: a file is missing or damaged, the parts leave a gap, or ranks that hold the same part disagree.
    """
    files = StepFiles(step_folder)
    identity = files.manifest.identity.models.get(model)
    if identity is None:
        names = sorted(files.manifest.identity.models)
        raise ConfigError(f"{step_folder}: holds the models {names}, no {model!r}; name one of them")
    whole: dict[str, torch.Tensor] = {}
    filled: dict[str, set[tuple[int, ...]]] = {}
    for rank in range(identity.world_size):
        specs = files.trainable_specs(model, rank)
        for name, part in files.trainable(model, rank).items():
            shape = specs[name].whole_shape or specs[name].shape
            if name not in whole:
                whole[name] = torch.empty(shape, dtype=part.dtype)
                filled[name] = set()
            _place(f"{step_folder}: {model} {name!r}", whole[name], part, specs[name], filled[name])
    for name, tensor in whole.items():
        held = sum(_size(place, tensor.dim()) for place in filled[name])
        if held != tensor.numel():
            raise TrainingError(f"{step_folder}: {model} {name!r}: ranks hold {held} of {tensor.numel()} values; a bug")
    return whole


def _place(where: str, whole: torch.Tensor, part: torch.Tensor, spec: TensorSpec, filled: set[tuple[int, ...]]) -> None:
    offset = spec.offset or (0,) * part.dim()
    target = whole[tuple(slice(start, start + length) for start, length in zip(offset, part.shape, strict=True))]
    place = (*offset, *part.shape)
    if place in filled and not torch.equal(_bits(target), _bits(part)):
        raise TrainingError(f"{where}: ranks that hold the same part differ; they did not train as one model")
    if part.numel():
        target.copy_(part)
        filled.add(place)


def _size(place: tuple[int, ...], num_dims: int) -> int:
    return torch.Size(place[num_dims:]).numel()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
