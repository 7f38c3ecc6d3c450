"""Saving, as one rank of one model does it: a copy while training waits, then a thread that writes."""

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from atlas_rl.checkpoint.background import Background
from atlas_rl.checkpoint.durable import OpenFile, create, make_folder, sync_folders
from atlas_rl.checkpoint.layout import RECEIPTS, RUN, rank_folder, step_of_partial
from atlas_rl.checkpoint.receipt import Receipt, leave_receipt, leave_refusal
from atlas_rl.checkpoint.snapshot import HostBuffers, Snapshot
from atlas_rl.checkpoint.state import OPTIMIZER, TRAINABLE, Part, RankState, rank_parts, tensor_file
from atlas_rl.checkpoint.tensors import num_bytes, spec_of
from atlas_rl.errors import ConfigError, TrainingError

_MODEL = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class SaveCost:
    """What one save cost its rank before training went on."""

    copy_seconds: float
    """Until the last tensor was in host memory."""
    wait_seconds: float
    """Before that: for the writing of the step before, which is 0 unless saves come faster than the disk takes them."""
    num_bytes: int
    """Of this rank's files."""


class RankWriter:
    """Writes the files of one rank of one model into the folders that the committing process begins.

    One thread calls it. Host memory for one copy of the state stays allocated between saves.
    """

    def __init__(self, model: str, rank: int, *, open_file: OpenFile = create) -> None:
        """A writer that has nothing to write yet.

        Args:
            model: Name of the model, as in RunIdentity.models.
            rank: Of this process among those of the model.
            open_file: Creates the files; for tests.

        Raises:
            ConfigError: the model's name cannot be a folder's.
        """
        if not _MODEL.fullmatch(model) or model in (RUN, RECEIPTS):
            raise ConfigError(
                f"model {model!r} must match {_MODEL.pattern} and not be {RUN!r} or {RECEIPTS!r}; it names a folder"
            )
        self.model = model
        self.rank = rank
        self._open_file = open_file
        self._buffers = HostBuffers()
        self._writing: Background[Receipt] | None = None

    def reserve(self, trainable: Mapping[str, torch.Tensor], *, optimizer_is_on_card: bool) -> None:
        """Allocate the host memory of saves and copy the tensors once, so that the first save is like the others.

        Pinning two gigabytes takes a second, and so do first copies.

        Args:
            trainable: As ``RankState.trainable``, where they are when a step is saved.
            optimizer_is_on_card: Whether the state of an Adam that trains them will be on a card then.

        Raises:
            TrainingError: a tensor cannot be saved.
        """
        folder = rank_folder(self.model, self.rank)
        self._buffers.snapshot([Part(f"{folder}/{TRAINABLE}", None, trainable)])
        size = num_bytes({name: spec_of(name, tensor) for name, tensor in trainable.items()})
        # Two moments of each tensor, and one number of four bytes.
        moments = 2 * size + 4 * len(trainable)
        self._buffers.reserve(tensor_file(f"{folder}/{OPTIMIZER}"), moments, is_pinned=optimizer_is_on_card)

    def save(self, partial: Path, state: RankState) -> SaveCost:
        """Copy the state to host memory, begin to write it, and return.

        Args:
            partial: The folder that ``StepCommitter.begin`` returned, as this process sees it.
            state: Tensors may change as soon as this returns.

        Raises:
            TrainingError: the step before could not be written, or the state cannot be saved.
        """
        step = step_of_partial(partial)
        begin = time.perf_counter()
        self.wait()
        waited = time.perf_counter()
        snapshot = self._buffers.snapshot(rank_parts(self.model, self.rank, state))
        copied = time.perf_counter()
        name = f"write {self.model} rank {self.rank} step {step}"
        self._writing = Background(name, lambda: self._write(partial, step, snapshot))
        return SaveCost(copy_seconds=copied - waited, wait_seconds=waited - begin, num_bytes=snapshot.num_bytes)

    def wait(self) -> Receipt | None:
        """Wait until the files of the last save are on disk; None if there is nothing to wait for. Call it before exit.

        Raises:
            TrainingError: they could not be written; said once.
        """
        writing, self._writing = self._writing, None
        return None if writing is None else writing.outcome()

    def _write(self, partial: Path, step: int, snapshot: Snapshot) -> Receipt:
        begin = time.perf_counter()
        try:
            folder = partial / rank_folder(self.model, self.rank)
            make_folder(folder)
            files = snapshot.write(partial, self._open_file)
            sync_folders(folder, folder.parent)
            receipt = Receipt(
                step=step, model=self.model, rank=self.rank, files=files, write_seconds=time.perf_counter() - begin
            )
            leave_receipt(partial, receipt)
        except Exception as error:
            # Best effort: on a full disk the refusal does not fit either, and the next call of this rank raises.
            with contextlib.suppress(TrainingError, OSError):
                leave_refusal(partial, self.model, self.rank, str(error))
            raise
        return receipt
