"""manifest.json: what a step consists of, to the bit. A folder without one is not a step."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atlas_rl.checkpoint.identity import LoraIdentity, ModelIdentity, RunIdentity
from atlas_rl.checkpoint.layout import MANIFEST, step_of
from atlas_rl.checkpoint.tensors import TensorSpec
from atlas_rl.errors import TrainingError

FORMAT = 1
"""Raised by every change that a reader of the format before would misunderstand."""

RESTORE = "restore it from a copy, or resume from another step"


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a step."""

    size: int
    """Bytes."""
    sha256: str
    """Hex."""
    tensors: Mapping[str, TensorSpec] = field(default_factory=dict)
    """What a safetensors file holds, by name."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One step."""

    step: int
    identity: RunIdentity
    code_version: str
    """Whatever the caller tells its code apart by, for example a git commit."""
    written_at: str
    """UTC, ISO 8601; when the step was committed."""
    files: Mapping[str, FileEntry]
    """By path relative to the step's folder; every file but the manifest."""


def encode_manifest(manifest: Manifest) -> bytes:
    """The one text of a manifest: compact JSON that ends with the sha256 of itself without that digest."""
    models = {name: _model_to_json(model) for name, model in manifest.identity.models.items()}
    body = {
        "format": FORMAT,
        "run_id": manifest.identity.run_id,
        "step": manifest.step,
        "written_at": manifest.written_at,
        "code_version": manifest.code_version,
        "models": models,
        "files": files_to_json(manifest.files),
    }
    return _sealed(body)


def read_manifest(step_folder: Path) -> Manifest:
    """The manifest of a committed step, checked against itself and against the folder's name.

    Raises:
        TrainingError: it is missing, damaged, of another format, or of another step than the folder's name says.
    """
    step = step_of(step_folder)
    path = step_folder / MANIFEST
    body = _opened(path, _read(path))
    if body.get("format") != FORMAT:
        raise TrainingError(
            f"{path}: format {body.get('format')}, this program reads {FORMAT}; use the code that wrote it"
        )
    try:
        manifest = _from_json(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TrainingError(f"{path}: not a manifest of format {FORMAT} ({error!r}); {RESTORE}") from error
    if manifest.step != step:
        raise TrainingError(f"{path}: is of step {manifest.step}, the folder is {step_folder.name}; rename it back")
    return manifest


def files_to_json(files: Mapping[str, FileEntry]) -> dict[str, Any]:
    """Entries as JSON values, for manifests and receipts."""
    return {
        name: {"size": entry.size, "sha256": entry.sha256}
        | (
            {"tensors": {tensor: _spec_to_json(spec) for tensor, spec in entry.tensors.items()}}
            if entry.tensors
            else {}
        )
        for name, entry in files.items()
    }


def files_from_json(files: Mapping[str, Any]) -> dict[str, FileEntry]:
    """Entries that ``files_to_json`` wrote.

    Raises:
        KeyError, TypeError, ValueError: it did not write them.
    """
    return {
        name: FileEntry(
            size=int(entry["size"]),
            sha256=str(entry["sha256"]),
            tensors={tensor: _spec_from_json(spec) for tensor, spec in entry.get("tensors", {}).items()},
        )
        for name, entry in files.items()
    }


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise TrainingError(f"{path}: not there; the folder is no complete step; {RESTORE}") from error
    except OSError as error:
        raise TrainingError(f"{path}: cannot be read: {error.strerror}; {RESTORE}") from error


def _sealed(body: Mapping[str, Any]) -> bytes:
    text = _compact(body)
    digest = hashlib.sha256(text).hexdigest()
    return text[:-1] + f',"sha256":"{digest}"}}\n'.encode("ascii")


def _opened(path: Path, content: bytes) -> dict[str, Any]:
    """The JSON of a manifest whose every byte is as it was written."""
    try:
        body = json.loads(content)
    except ValueError as error:
        raise TrainingError(f"{path}: damaged ({len(content)} bytes, not JSON); {RESTORE}") from error
    if not isinstance(body, dict) or _sealed({k: v for k, v in body.items() if k != "sha256"}) != content:
        raise TrainingError(f"{path}: damaged: its content and its own sha256 do not agree; {RESTORE}")
    return body


def _compact(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode("ascii")


def _from_json(body: Mapping[str, Any]) -> Manifest:
    models = {name: _model_from_json(model) for name, model in body["models"].items()}
    return Manifest(
        step=int(body["step"]),
        identity=RunIdentity(run_id=str(body["run_id"]), models=models),
        code_version=str(body["code_version"]),
        written_at=str(body["written_at"]),
        files=files_from_json(body["files"]),
    )


def _model_to_json(model: ModelIdentity) -> dict[str, Any]:
    lora = model.lora and {
        "rank": model.lora.rank, "alpha": model.lora.alpha, "target_modules": list(model.lora.target_modules),
    }  # fmt: skip
    return {"world_size": model.world_size, "base_fingerprint": model.base_fingerprint, "lora": lora}


def _model_from_json(model: Mapping[str, Any]) -> ModelIdentity:
    lora = model["lora"] and LoraIdentity(
        rank=model["lora"]["rank"],
        alpha=model["lora"]["alpha"],
        target_modules=tuple(model["lora"]["target_modules"]),
    )
    return ModelIdentity(world_size=model["world_size"], base_fingerprint=model["base_fingerprint"], lora=lora)


def _spec_to_json(spec: TensorSpec) -> dict[str, Any]:
    plain: dict[str, Any] = {"dtype": spec.dtype, "shape": spec.shape}
    if spec.whole_shape is not None:
        plain |= {"whole_shape": spec.whole_shape, "offset": spec.offset}
    return plain


def _spec_from_json(spec: Mapping[str, Any]) -> TensorSpec:
    whole, offset = spec.get("whole_shape"), spec.get("offset")
    return TensorSpec(
        spec["dtype"],
        tuple(spec["shape"]),
        None if whole is None else tuple(whole),
        None if offset is None else tuple(offset),
    )
