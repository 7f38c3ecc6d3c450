"""Nested Python values as JSON and tensors, so that they come back as the same types with the same bits.

Dicts, lists, tuples, None, bools, ints, floats and strings are JSON; tensors, arrays and bytes go into a safetensors
file under the path of their place. What JSON has no form for is an object with the key "$":

    {"lr": 0.1, "betas": (0.9, 0.95), 0: tensor}
    -> {"$": "dict", "items": [["lr", 0.1], ["betas", {"$": "tuple", "items": [0.9, 0.95]}], [0, {"$": "tensor"}]]}
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from atlas_rl.errors import TrainingError

_TAG = "$"
_MAX_DEPTH = 64


class LocalShard:
    """What comes back for a DTensor: this rank's part; who restores it knows the mesh."""

    def __init__(self, local: torch.Tensor) -> None:
        self.local = local


def encode(value: object) -> tuple[Any, dict[str, torch.Tensor]]:
    """Split a value into what JSON holds and the tensors, not copied, by the path of their place.

    Raises:
        TrainingError: some part is of a type that would not come back as it was; the message gives its path.
    """
    tensors: dict[str, torch.Tensor] = {}
    return _encode(value, "", tensors, 0), tensors


def decode(document: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value that ``encode`` split; it takes the tensors over.

    Raises:
        TrainingError: the document asks for a tensor that is not there, or is not one of ``encode``.
    """
    return _decode(document, "", tensors)


def _encode(value: object, path: str, tensors: dict[str, torch.Tensor], depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "is": repr(value)}
    if depth > _MAX_DEPTH:
        raise TrainingError(f"state at {path or '/'}: nested deeper than {_MAX_DEPTH}; a value that holds itself?")
    if isinstance(value, dict) and kind is dict:
        return _encode_dict(value, path, tensors, depth)
    if isinstance(value, list | tuple) and kind in (list, tuple):
        items = [_encode(item, f"{path}/{place}", tensors, depth + 1) for place, item in enumerate(value)]
        return items if kind is list else {_TAG: "tuple", "items": items}
    tag, tensor = _as_tensor(value, path)
    if path in tensors:
        raise TrainingError(f"state at {path}: two places have this path; name their keys apart")
    tensors[path] = tensor
    return {_TAG: tag}


def _encode_dict(value: dict[Any, Any], path: str, tensors: dict[str, torch.Tensor], depth: int) -> Any:
    for key in value:
        if type(key) not in (str, int):
            raise TrainingError(f"state at {path or '/'}: key {key!r} is a {type(key).__name__}; give strings or ints")
    items = {key: _encode(item, f"{path}/{_escaped(key)}", tensors, depth + 1) for key, item in value.items()}
    if _TAG not in items and all(isinstance(key, str) for key in items):
        return items
    return {_TAG: "dict", "items": [[key, item] for key, item in items.items()]}


def _as_tensor(value: object, path: str) -> tuple[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return ("shard" if isinstance(value, DTensor) else "tensor"), value
    if type(value) is bytes:
        return "bytes", torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0).byte()
    if type(value) is np.ndarray or isinstance(value, np.generic):
        tag = "array" if isinstance(value, np.ndarray) else "scalar"
        try:
            return tag, torch.from_numpy(np.array(value, order="C"))
        except (TypeError, ValueError):
            pass  # a dtype that torch does not have: refused below like any other type
    shown = f"{type(value).__name__} {getattr(value, 'dtype', '')}".strip()
    raise TrainingError(
        f"state at {path or '/'}: {shown} would not come back as it is; give plain values, tensors, arrays or bytes"
    )


def _decode(document: Any, path: str, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(document, list):
        return [_decode(item, f"{path}/{place}", tensors) for place, item in enumerate(document)]
    if not isinstance(document, dict):
        return document
    if _TAG not in document:
        return {key: _decode(item, f"{path}/{_escaped(key)}", tensors) for key, item in document.items()}
    tag = document[_TAG]
    if tag == "float":
        return float(document["is"])
    if tag == "tuple":
        return tuple(_decode(item, f"{path}/{place}", tensors) for place, item in enumerate(document["items"]))
    if tag == "dict":
        return {key: _decode(item, f"{path}/{_escaped(key)}", tensors) for key, item in document["items"]}
    if tag not in _FROM_TENSOR or path not in tensors:
        raise TrainingError(f"state at {path or '/'}: {document} stands for nothing that was saved")
    return _FROM_TENSOR[tag](tensors[path])


_FROM_TENSOR: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda tensor: tensor,
    "shard": LocalShard,
    "bytes": lambda tensor: tensor.numpy().tobytes(),
    "array": lambda tensor: tensor.numpy(),
    "scalar": lambda tensor: tensor.numpy()[()],
}


def _escaped(key: str | int) -> str:
    """A key as part of a path: the escapes of JSON pointers keep two paths apart."""
    return str(key).replace("~", "~0").replace("/", "~1")
