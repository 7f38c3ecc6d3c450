"""Safetensors files, written one tensor at a time and the same to the byte every time.

The library's own writer holds a whole file in memory and orders its metadata by chance, so two equal adapters would
have two digests.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch

from atlas_rl.errors import ConfigError

DTYPE_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Safetensors' word for each dtype."""


class TensorSpec(NamedTuple):
    """What the head of a file says of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class FileDigests(NamedTuple):
    """sha256 (hex) of what was written."""

    file: str
    tensors: dict[str, str]
    """By name: of a tensor's bytes, row after row."""


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, row after row."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def write_tensors(
    path: Path,
    specs: Sequence[TensorSpec],
    load: Callable[[str], torch.Tensor],
    metadata: Mapping[str, str],
) -> FileDigests:
    """Write a safetensors file and flush it to the disk.

    Args:
        path: A new file.
        specs: Of every tensor.
        load: Gives a tensor of the shape and dtype of its spec; asked once for each, none is kept.
        metadata: Free text of the file's head.

    Raises:
        ConfigError: the file cannot be written.
    """
    # Wide dtypes first: every tensor then starts at a multiple of its item size, which readers that map the file need.
    ordered = sorted(specs, key=lambda spec: (-spec.dtype.itemsize, spec.name))
    head: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for spec in ordered:
        start, end = end, end + spec.num_bytes
        head[spec.name] = {
            "dtype": DTYPE_CODES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    whole = hashlib.sha256()
    digests = {}
    try:
        with path.open("xb") as stream:
            for part in (len(text).to_bytes(8, "little"), text):
                whole.update(part)
                stream.write(part)
            for spec in ordered:
                digests[spec.name] = _write_one(stream, whole, spec, load)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; free space or choose another") from error
    return FileDigests(whole.hexdigest(), digests)


def _write_one(stream: IO[bytes], whole: Any, spec: TensorSpec, load: Callable[[str], torch.Tensor]) -> str:
    """A function of its own, so that the tensor is gone when the next is loaded."""
    tensor = load(spec.name)
    if tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
        raise AssertionError(f"{spec} was loaded as {tuple(tensor.shape)} {tensor.dtype}")
    values = tensor_bytes(tensor)
    whole.update(values)
    stream.write(values)
    return hashlib.sha256(values).hexdigest()
