"""Tensors as a safetensors file holds them: what is said of each, their copy in host memory, and reading back."""

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from atlas_rl.errors import TrainingError, blame

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""Spelling of each dtype in the file format."""


@dataclass(frozen=True)
class TensorSpec:
    """What is known of a tensor without its values."""

    dtype: str
    """As the file format spells it: F32, BF16, ..."""
    shape: tuple[int, ...]
    """Of the part that this rank holds; () for a scalar."""
    whole_shape: tuple[int, ...] | None = None
    """Of the tensor over all ranks; None if this rank holds all of it."""
    offset: tuple[int, ...] | None = None
    """Where this rank's part begins in the whole, one number a dimension; None as ``whole_shape``."""

    def __str__(self) -> str:
        whole = "" if self.whole_shape is None else f" at {list(self.offset or ())} of {list(self.whole_shape)}"
        return f"{self.dtype}{list(self.shape)}{whole}"


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds: the tensor itself, or a DTensor's local shard; not a copy."""
    # Without gradients a DTensor hands its shard out as it is; an autograd node for each costs as much as its copy.
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def spec_of(name: str, tensor: torch.Tensor, local: torch.Tensor | None = None) -> TensorSpec:
    """What is known of a tensor.

    Args:
        name: Of the tensor, for errors.
        tensor: Plain or sharded.
        local: Its ``local_part``, where the caller has it.

    Raises:
        TrainingError: its dtype or layout has no place in the file format, or its sharding cannot be described.
    """
    local = local_part(tensor) if local is None else local
    if local.dtype not in DTYPES or local.layout != torch.strided or local.is_quantized or local.is_meta:
        raise TrainingError(
            f"tensor {name!r}: {local.dtype}, {local.layout}, on {local.device} cannot be saved; give a dense tensor "
            "of a plain dtype that has values"
        )
    shape = tuple(local.shape)
    if not isinstance(tensor, DTensor):
        return TensorSpec(DTYPES[local.dtype], shape)
    whole_shape = tuple(tensor.shape)
    try:
        offset = _offset(tensor.device_mesh, tensor.placements, whole_shape, shape)
    except TrainingError as error:
        raise TrainingError(f"tensor {name!r}: {error}") from None
    return TensorSpec(DTYPES[local.dtype], shape, whole_shape, offset)


@functools.lru_cache(maxsize=4096)
def _offset(
    mesh: DeviceMesh, placements: tuple[Placement, ...], whole_shape: tuple[int, ...], local_shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Start of this rank's part: every sharding cuts what the ones before it left into parts of ceil(rows / ranks).

    A model has thousands of tensors of a few shapes, hence the cache.
    """
    coordinate = mesh.get_coordinate()
    offset, shape = [0] * len(whole_shape), list(whole_shape)
    for place, placement in enumerate(placements):
        if placement.is_replicate():
            continue
        if type(placement) is not Shard or coordinate is None:
            raise TrainingError(f"placement {placement} cannot be saved; shard it by rows or not at all")
        dim, ranks = placement.dim, mesh.size(place)
        rows = -(-shape[dim] // ranks)
        start = min(coordinate[place] * rows, shape[dim])
        offset[dim] += start
        shape[dim] = min(rows, shape[dim] - start)
    if tuple(shape) != local_shape:
        raise TrainingError(f"this rank holds {list(local_shape)} where {shape} was expected; a bug")
    return tuple(offset)


class HostTensors:
    """A safetensors file in host memory: the header, and one buffer with every tensor's bytes in their order.

    Larger items come first, so each tensor starts at a multiple of its item size, in the buffer and in the file.
    """

    def __init__(self, specs: Mapping[str, TensorSpec], buffer: torch.Tensor) -> None:
        """Lay tensors out in a buffer.

        Args:
            specs: By name.
            buffer: [at least ``num_bytes(specs)``] uint8 in host memory.
        """
        self.specs = dict(specs)
        self._views: dict[str, torch.Tensor] = {}
        described: dict[str, object] = {}
        end = 0
        for name in sorted(specs, key=lambda one: (-_dtype(specs[one]).itemsize, one)):
            spec = specs[name]
            start, end = end, end + _num_bytes(spec)
            self._views[name] = buffer[start:end].view(_dtype(spec)).view(spec.shape)
            described[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, end]}
        text = json.dumps(described, separators=(",", ":")).encode("ascii")
        text += b" " * (-len(text) % 8)
        self._header = len(text).to_bytes(8, "little") + text
        self._data = buffer[:end]

    def fill(self, local: Mapping[str, torch.Tensor], *, is_pinned: bool) -> set[torch.device]:
        """Copy tensors in; returns the CUDA devices whose copies are still under way.

        Args:
            local: By name, the ``local_part`` of each, of the dtypes and shapes that the file was laid out for.
            is_pinned: The buffer is pinned, so that copies from a card need not be waited for one by one.
        """
        for name, view in self._views.items():
            view.copy_(local[name], non_blocking=is_pinned)
        return {tensor.device for tensor in local.values() if tensor.is_cuda}

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._header) + len(self._data)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The file's content, in order; the buffer itself, not a copy."""
        yield self._header
        if len(self._data):
            yield self._data.numpy().data


def num_bytes(specs: Mapping[str, TensorSpec]) -> int:
    """Bytes of the values of all tensors."""
    return sum(_num_bytes(spec) for spec in specs.values())


def read_tensors(path: Path, content: bytes, specs: Mapping[str, TensorSpec]) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, in the order of ``specs``, on the CPU.

    Args:
        path: Named in errors.
        content: The whole file.
        specs: What the file must hold, no less and no more.

    Raises:
        TrainingError: it is no safetensors file, or holds other names, dtypes or shapes.
    """
    with blame(TrainingError, f"{path}: not a safetensors file; restore it from a copy"):
        tensors = safetensors.torch.load(content)
    wrong = next((name for name in (*specs, *tensors) if name not in specs or name not in tensors), None)
    if wrong is not None:
        where = "only in the manifest" if wrong in specs else "only in the file"
        raise TrainingError(f"{path}: tensor {wrong!r} is {where}; the step was not written by this program")
    for name, spec in specs.items():
        tensor = tensors[name]
        if (DTYPES[tensor.dtype], tuple(tensor.shape)) != (spec.dtype, spec.shape):
            found = TensorSpec(DTYPES[tensor.dtype], tuple(tensor.shape))
            raise TrainingError(f"{path}: tensor {name!r} is {found} in the file and {spec} in the manifest")
    return {name: tensors[name] for name in specs}


def _dtype(spec: TensorSpec) -> torch.dtype:
    return next(dtype for dtype, spelled in DTYPES.items() if spelled == spec.dtype)


def _num_bytes(spec: TensorSpec) -> int:
    return torch.Size(spec.shape).numel() * _dtype(spec).itemsize
