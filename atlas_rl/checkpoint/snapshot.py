"""The one part of saving that training waits for: the copy of every tensor to host memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from atlas_rl.checkpoint.durable import OpenFile, write_file
from atlas_rl.checkpoint.manifest import FileEntry
from atlas_rl.checkpoint.state import Part, json_file, tensor_file
from atlas_rl.checkpoint.tensors import HostTensors, TensorSpec, local_part, num_bytes, spec_of


@dataclass(frozen=True)
class Snapshot:
    """Files of a step in host memory; nothing in them changes any more."""

    documents: dict[str, bytes]
    """By path relative to the step's folder."""
    tensors: dict[str, HostTensors]
    """By path relative to the step's folder."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.documents.values())) + sum(held.size for held in self.tensors.values())

    def files(self) -> Iterator[str]:
        """Paths of all files, relative to the step's folder."""
        yield from self.tensors
        yield from self.documents

    def write(self, folder: Path, open_file: OpenFile) -> dict[str, FileEntry]:
        """Write every file under ``folder``, whose own folders are there, and wait until the disk has them.

        Raises:
            TrainingError: the disk refused one of them.
        """
        entries = {}
        for name, held in self.tensors.items():
            size, sha256 = write_file(folder / name, held.chunks(), open_file)
            entries[name] = FileEntry(size=size, sha256=sha256, tensors=held.specs)
        for name, document in self.documents.items():
            size, sha256 = write_file(folder / name, [document], open_file)
            entries[name] = FileEntry(size=size, sha256=sha256)
        return entries


class HostBuffers:
    """Host memory for snapshots, used again by each: only one snapshot may be alive at a time.

    Memory for tensors of a card is pinned, so that the copies run at the speed of the bus.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, bool], torch.Tensor] = {}
        self._laid_out: dict[tuple[str, bool], HostTensors] = {}

    def reserve(self, name: str, size: int, *, is_pinned: bool) -> None:
        """Allocate a file's memory before the first snapshot, which would wait for it: pinning takes a second for 2 GB.

        Args:
            name: As the snapshot will call the file.
            size: Bytes; a file that turns out larger is allocated again.
            is_pinned: Its tensors are on a card.
        """
        self._buffer(name, size, is_pinned=is_pinned)

    def snapshot(self, parts: Iterable[Part]) -> Snapshot:
        """Copy everything; returns when the copies are complete.

        Raises:
            TrainingError: a tensor cannot be saved.
        """
        documents: dict[str, bytes] = {}
        tensors: dict[str, HostTensors] = {}
        busy: set[torch.device] = set()
        for part in parts:
            if part.document is not None:
                documents[json_file(part.name)] = part.document
            if part.tensors or part.document is None:
                name = tensor_file(part.name)
                local = {one: local_part(tensor) for one, tensor in part.tensors.items()}
                specs = {one: spec_of(one, tensor, local[one]) for one, tensor in part.tensors.items()}
                on_card = any(tensor.is_cuda for tensor in local.values())
                tensors[name] = self._lay_out(name, specs, is_pinned=on_card)
                busy |= tensors[name].fill(local, is_pinned=on_card)
        for device in busy:
            torch.cuda.current_stream(device).synchronize()
        return Snapshot(documents, tensors)

    def _lay_out(self, name: str, specs: dict[str, TensorSpec], *, is_pinned: bool) -> HostTensors:
        """The file's place in host memory; the one of the snapshot before, if it held the same tensors."""
        before = self._laid_out.get((name, is_pinned))
        if before is not None and before.specs == specs:
            return before
        laid_out = HostTensors(specs, self._buffer(name, num_bytes(specs), is_pinned=is_pinned))
        self._laid_out[name, is_pinned] = laid_out
        return laid_out

    def _buffer(self, name: str, size: int, *, is_pinned: bool) -> torch.Tensor:
        """[at least size] uint8."""
        buffer = self._buffers.get((name, is_pinned))
        if buffer is None or len(buffer) < size:
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
            self._buffers[name, is_pinned] = buffer
        return buffer
