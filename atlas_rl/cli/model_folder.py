"""A local Hugging Face model folder, looked at before anything loads it: complete, readable, and named by a digest."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas_rl.errors import ConfigError

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")
"""One of these makes a folder a tokenizer."""

_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    *_TOKENIZER_FILES,
)
_WHOLE_BYTES = 64 * 2**20
_SAMPLE_BYTES = 2**20
_NUM_SAMPLES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """What the start of a run needs to know of a model."""

    key: str
    """The configuration key that names the folder."""
    path: Path
    config: Mapping[str, Any]
    """config.json."""
    fingerprint: str
    """sha256 (hex) of ``fingerprint``."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding and of the output head."""
        return self._number("vocab_size")

    @property
    def max_position_embeddings(self) -> int:
        """Most tokens of a sequence."""
        return self._number("max_position_embeddings")

    def _number(self, name: str) -> int:
        text = self.config.get("text_config")
        value = self.config.get(name, text.get(name) if isinstance(text, Mapping) else None)
        if type(value) is not int:
            raise ConfigError(f"{self.path / 'config.json'}: {name} must be a whole number, got {value!r}; add it")
        return value


def read_model_folder(key: str, folder: str) -> ModelFolder:
    """Check that a folder holds a model that verl and vLLM can load.

    Args:
        key: The configuration key that names the folder, for messages.
        folder: The value of that key.

    Raises:
        ConfigError: no such folder, or it lacks a readable config.json with one architecture, or whole weights.
    """
    if str(folder).endswith("/"):
        raise ConfigError(f"{key}={folder}: verl refuses a path that ends with a slash; write {folder.rstrip('/')}")
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(f"{key}={folder}: no such folder; give a local Hugging Face model folder")
    config = _read_json(key, path / "config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise ConfigError(
            f"{path / 'config.json'}: architectures must name one class, got {architectures!r}; correct it"
        )
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        raise ConfigError(f"{key}={folder}: no *.safetensors file there; save the weights as safetensors")
    index = path / "model.safetensors.index.json"
    if index.exists():
        named = set(_read_json(key, index).get("weight_map", {}).values())
        absent = sorted(named - {file.name for file in weights})
        if absent:
            raise ConfigError(f"{index}: names {absent[0]}, which is not there ({len(absent)} missing); copy it too")
    return ModelFolder(key=key, path=path, config=config, fingerprint=fingerprint(path))


def read_tokenizer_folder(key: str, folder: str) -> Path:
    """Check that a folder holds a tokenizer.

    Raises:
        ConfigError: no such folder, or none of the files of a tokenizer in it.
    """
    path = Path(folder)
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise ConfigError(
            f"{key}={folder}: no tokenizer there ({', '.join(_TOKENIZER_FILES)}); save it beside the model"
        )
    return path


def fingerprint(folder: Path) -> str:
    """sha256 (hex) over the folder's configuration, tokenizer and weights.

    Of a weight file above 64 MiB the header, the size and 16 samples of 1 MiB, evenly spread, stand for the whole: 50
    GB are not read. Files up to that size are read whole.

    Raises:
        ConfigError: a weight file is cut short or is no safetensors file.
    """
    digest = hashlib.sha256()
    for file in [folder / name for name in sorted(_SMALL_FILES)]:
        if file.is_file():
            _add(digest, file.name, iter([file.read_bytes()]))
    for file in sorted(folder.glob("*.safetensors")):
        _check_whole(file)
        _add(digest, file.name, _samples(file))
    return digest.hexdigest()


def _add(digest: Any, name: str, parts: Iterator[bytes]) -> None:
    inner = hashlib.sha256()
    for part in parts:
        inner.update(part)
    digest.update(f"{name} {inner.hexdigest()}\n".encode())


def _samples(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= _WHOLE_BYTES:
            yield stream.read()
            return
        yield str(size).encode()
        header = 8 + int.from_bytes(stream.read(8), "little")
        stream.seek(0)
        yield stream.read(header)
        for place in range(_NUM_SAMPLES):
            stream.seek(header + (size - header - _SAMPLE_BYTES) * place // (_NUM_SAMPLES - 1))
            yield stream.read(_SAMPLE_BYTES)


def _check_whole(file: Path) -> None:
    """The header of a safetensors file says how long the file is."""
    size = os.path.getsize(file)
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= size - 8:
            raise ConfigError(
                f"{file}: {size} bytes with a header of {length}: no safetensors file, or cut; copy it again"
            )
        try:
            header = json.loads(stream.read(length))
            ends = [part["data_offsets"][1] for name, part in header.items() if name != "__metadata__"]
        except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
            raise ConfigError(f"{file}: its header is not that of a safetensors file; copy it again") from error
    needed = 8 + length + max(ends, default=0)
    if size != needed:
        raise ConfigError(f"{file}: {size} bytes, its header says {needed}; copy it again")


def _read_json(key: str, path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{key}={path.parent}: no {path.name} there; give a local Hugging Face model folder")
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path}: no JSON: {error}; save the model again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must hold a JSON object, got {type(content).__name__}; save the model again")
    return content
