"""Base and adapter become one model folder, one tensor at a time."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from atlas_rl.adapters.names import PREFIX, is_b, lora_names
from atlas_rl.adapters.out_folder import new_folder
from atlas_rl.adapters.reading import AdapterFolder, read_adapter
from atlas_rl.adapters.settings import AdapterKind
from atlas_rl.adapters.tensor_file import DTYPE_CODES, TensorSpec, write_tensors
from atlas_rl.errors import ConfigError

MERGED_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Dtypes that a merged weight can be stored in."""

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFacts:
    """What a merge did."""

    num_merged: int
    """Weights that the adapter changed."""
    num_copied: int
    """Tensors that it did not touch."""
    base_stated: bool
    """Whether the adapter says which base it was made for; if not, only its shapes were compared."""
    left_out: tuple[str, ...]
    """Files of the base that are not in the merged folder: other formats of its weights, and folders."""
    files: Mapping[str, str]
    """Weight file to sha256 (hex)."""


def merge_adapter(
    base_dir: Path, adapter_dir: Path, out_dir: Path, dtype: torch.dtype | None = None, *, base_fingerprint: str
) -> MergeFacts:
    """Write the base with alpha / rank * B @ A added to every target, computed in float32 and rounded once.

    The base is read and written one tensor at a time, into files of the same names.

    Args:
        base_dir: A local Hugging Face folder with safetensors.
        adapter_dir: An actor's adapter.
        out_dir: A new folder.
        dtype: Of every floating-point tensor of the result; each keeps its own if none is given.
        base_fingerprint: sha256 (hex) of the base.

    Raises:
        ConfigError: ``out_dir`` is not empty, the adapter is a critic's or another base's, a target is not in the
            base, or a file is missing or damaged.
    """
    if dtype not in (None, *MERGED_DTYPES.values()):
        raise ConfigError(f"merge dtype must be one of {', '.join(MERGED_DTYPES)}, got {dtype}")
    adapter = read_adapter(adapter_dir)
    if adapter.settings.kind is not AdapterKind.ACTOR:
        raise ConfigError(f"adapter {adapter_dir} is a {adapter.settings.kind}'s; only an actor's can be merged")
    adapter.check_base(base_fingerprint)
    files = _weight_files(base_dir)
    merger = _Merger(adapter, dtype)
    _check_untied(base_dir, merger.layers)
    specs = {file: merger.specs(file) for file in files}
    merger.check_all_found()
    with new_folder(out_dir) as folder:
        left_out = _copy_others(base_dir, folder, dtype)
        digests = {file.name: merger.write(file, specs[file], folder / file.name) for file in files}
        if (base_dir / _INDEX).is_file():
            _write_index(base_dir, folder, [spec for file in files for spec in specs[file]])
    return MergeFacts(
        num_merged=len(merger.layers),
        num_copied=sum(map(len, specs.values())) - len(merger.layers),
        base_stated=adapter.base_fingerprint is not None,
        left_out=left_out,
        files=digests,
    )


class _Merger:
    """One adapter in memory, and the base's files looked at one by one."""

    def __init__(self, adapter: AdapterFolder, dtype: torch.dtype | None) -> None:
        self.adapter = adapter
        self.dtype = dtype
        self.tensors = adapter.load()
        self.layers = {name.removeprefix(PREFIX).removesuffix(".lora_B.weight") for name in self.tensors if is_b(name)}
        self._found: set[str] = set()

    def specs(self, file: Path) -> list[TensorSpec]:
        """What the merged file will hold, from the base file's head.

        Raises:
            ConfigError: the file is damaged, or a target in it has another shape or a dtype that cannot be merged.
        """
        with _opened(file) as content:
            heads = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118
            stored = [
                TensorSpec(name, tuple(head.get_shape()), _stored_dtype(file, name, head.get_dtype()))
                for name, head in heads.items()
            ]
        return [self._merged_spec(file, spec) for spec in stored]

    def _merged_spec(self, file: Path, spec: TensorSpec) -> TensorSpec:
        layer = spec.name.removesuffix(".weight")
        is_target = spec.name.endswith(".weight") and layer in self.layers
        if is_target:
            self._found.add(layer)
            a, b = (self.tensors[name] for name in lora_names(layer))
            if spec.shape != (len(b), a.shape[1]):
                raise ConfigError(
                    f"adapter {self.adapter.path} changes {layer} of shape {(len(b), a.shape[1])}, in {file} it is "
                    f"{spec.shape}; give the base that it was trained on"
                )
        converted = self.dtype is not None and spec.dtype.is_floating_point
        if (is_target or converted) and spec.dtype not in MERGED_DTYPES.values():
            raise ConfigError(f"{file}: {spec.name} is stored as {spec.dtype}; give a base that is not quantised")
        return spec._replace(dtype=self.dtype) if self.dtype is not None and converted else spec

    def check_all_found(self) -> None:
        """Refuse targets that no file holds.

        Raises:
            ConfigError: there is one.
        """
        absent = sorted(self.layers - self._found)
        if absent:
            raise ConfigError(
                f"adapter {self.adapter.path} changes {absent[0]} ({len(absent)} such), which no weight file of "
                "the base holds; give the base that it was trained on"
            )

    def write(self, file: Path, specs: list[TensorSpec], out: Path) -> str:
        """Write the merged file; its sha256 (hex)."""
        dtypes = {spec.name: spec.dtype for spec in specs}
        with _opened(file) as content:

            def load(name: str) -> torch.Tensor:
                tensor: torch.Tensor = content.get_tensor(name)
                layer = name.removesuffix(".weight")
                if name.endswith(".weight") and layer in self.layers:
                    a, b = (self.tensors[part] for part in lora_names(layer))
                    tensor = tensor.float() + (b @ a) * self.adapter.settings.scale
                stored = tensor.to(dtypes[name])
                if stored.dtype is torch.float16 and torch.isinf(stored).any():
                    raise ConfigError(f"{file}: {name} has values too large for float16; merge to bfloat16")
                return stored

            return write_tensors(out, specs, load, {"format": "pt"}).file


def _check_untied(base_dir: Path, layers: set[str]) -> None:
    """An output head that is the embedding too has no weight of its own to change."""
    config = _read_json(base_dir / "config.json")
    parts = [config, *(value for value in config.values() if isinstance(value, dict))]
    if "lm_head" in layers and any(part.get("tie_word_embeddings") for part in parts):
        raise ConfigError(f"base {base_dir} ties lm_head to its embedding, so the adapter of lm_head cannot be merged")


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, "pt")
    except FileNotFoundError:
        raise ConfigError(f"base {file.parent}: no {file.name} there; copy it too") from None
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file}: no whole safetensors file: {error}; copy it again") from error


def _stored_dtype(file: Path, name: str, code: str) -> torch.dtype:
    if code not in _DTYPES:
        raise ConfigError(f"{file}: {name} is stored as {code}; give a base that is not quantised")
    return _DTYPES[code]


def _weight_files(base_dir: Path) -> list[Path]:
    """The files that a loader would read: those of the index, else the single one."""
    index = base_dir / _INDEX
    if not index.is_file():
        return [base_dir / _SINGLE]
    return [base_dir / name for name in sorted(set(_read_json(index)["weight_map"].values()))]


def _copy_others(base_dir: Path, folder: Path, dtype: torch.dtype | None) -> tuple[str, ...]:
    """Copy configuration and tokenizer; name what stays behind."""
    left_out = []
    read = {file.name for file in _weight_files(base_dir)}
    for path in sorted(base_dir.iterdir()):
        if path.name in read or path.name == _INDEX:
            continue
        if not path.is_file() or path.name.endswith((*_WEIGHT_SUFFIXES, ".index.json")):
            left_out.append(path.name)
        elif path.name == "config.json" and dtype is not None:
            config = _read_json(path)
            _set_dtype(config, str(dtype).removeprefix("torch."))
            (folder / path.name).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        else:
            shutil.copyfile(path, folder / path.name)
    return tuple(left_out)


def _set_dtype(config: dict[str, Any], dtype: str) -> None:
    """Say in a configuration, and in those of its parts, what the weights are stored in."""
    for part in [config, *(value for value in config.values() if isinstance(value, dict))]:
        if part is config or "dtype" in part or "torch_dtype" in part:
            part.pop("torch_dtype", None)
            part["dtype"] = dtype


def _write_index(base_dir: Path, folder: Path, specs: list[TensorSpec]) -> None:
    index = _read_json(base_dir / _INDEX)
    index["metadata"] = {**index.get("metadata", {}), "total_size": sum(spec.num_bytes for spec in specs)}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"base {path.parent}: no {path.name} there; give a local Hugging Face folder") from None
    except ValueError as error:
        raise ConfigError(f"{path}: no JSON: {error}; save the model again") from error
    return content
