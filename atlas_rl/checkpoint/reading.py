"""The files of a committed step, none of whose bytes is used before it is known to be the one that was written."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from atlas_rl.checkpoint.layout import rank_folder
from atlas_rl.checkpoint.manifest import RESTORE, FileEntry, read_manifest
from atlas_rl.checkpoint.state import TRAINABLE, json_file, tensor_file
from atlas_rl.checkpoint.tensors import TensorSpec, read_tensors
from atlas_rl.checkpoint.tree import decode
from atlas_rl.errors import TrainingError, blame

_PIECE_BYTES = 8 << 20


class StepFiles:
    """A committed step, opened by its manifest."""

    def __init__(self, folder: Path) -> None:
        """Read the manifest of CHECKPOINTS/global_step_N.

        Raises:
            TrainingError: it is missing or damaged, or the folder is no step's.
        """
        self.folder = folder
        self.manifest = read_manifest(folder)

    def verify(self) -> None:
        """Check size and digest of every file.

        Raises:
            TrainingError: one is missing or damaged.
        """
        for name, entry in self.manifest.files.items():
            path = self.folder / name
            digest = hashlib.sha256()
            with _blamed(path), path.open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    digest.update(piece)
                size = file.tell()
            _check(path, entry, size, digest.hexdigest())

    def value(self, part: str) -> Any:
        """The value that a part holds.

        Args:
            part: Path of its files without an ending, relative to the step's folder.

        Raises:
            TrainingError: a file of it is missing or damaged.
        """
        name = json_file(part)
        content = self._content(name)
        tensors = self.tensors(tensor_file(part)) if tensor_file(part) in self.manifest.files else {}
        with blame(TrainingError, f"{self.folder / name}: not what this program writes"):
            return decode(json.loads(content), tensors)

    def trainable_specs(self, model: str, rank: int) -> Mapping[str, TensorSpec]:
        """What the manifest says of one rank's trainable tensors.

        Raises:
            TrainingError: it knows none of that rank.
        """
        return self._entry(_trainable(model, rank)).tensors

    def trainable(self, model: str, rank: int) -> dict[str, torch.Tensor]:
        """One rank's trainable tensors, its local parts, on the CPU.

        Raises:
            TrainingError: their file is missing or damaged.
        """
        return self.tensors(_trainable(model, rank))

    def trainable_path(self, model: str, rank: int) -> Path:
        """The file of one rank's trainable tensors."""
        return self.folder / _trainable(model, rank)

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """What a safetensors file of the step holds, on the CPU.

        Raises:
            TrainingError: the file is missing or damaged.
        """
        return read_tensors(self.folder / name, self._content(name), self._entry(name).tensors)

    def _content(self, name: str) -> bytes:
        path, entry = self.folder / name, self._entry(name)
        with _blamed(path):
            content = path.read_bytes()
        _check(path, entry, len(content), hashlib.sha256(content).hexdigest())
        return content

    def _entry(self, name: str) -> FileEntry:
        if name not in self.manifest.files:
            raise TrainingError(f"{self.folder / name}: not in the step's manifest, so it was never saved; {RESTORE}")
        return self.manifest.files[name]


def _trainable(model: str, rank: int) -> str:
    return tensor_file(f"{rank_folder(model, rank)}/{TRAINABLE}")


@contextmanager
def _blamed(path: Path) -> Iterator[None]:
    """What the system says of a file, as one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise TrainingError(f"{path}: not there, though the step's manifest lists it; {RESTORE}") from error
    except OSError as error:
        raise TrainingError(f"{path}: cannot be read: {error.strerror}; {RESTORE}") from error


def _check(path: Path, entry: FileEntry, size: int, sha256: str) -> None:
    if size != entry.size:
        kind = "cut short" if size < entry.size else "too long"
        raise TrainingError(f"{path}: {kind}: {size} bytes where {entry.size} were written; {RESTORE}")
    if sha256 != entry.sha256:
        raise TrainingError(
            f"{path}: damaged: its sha256 is {sha256[:12]}..., what was written had {entry.sha256[:12]}...; {RESTORE}"
        )
