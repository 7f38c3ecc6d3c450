"""The trajectory store: a folder of append-only shards, one writer a file."""

import contextlib
import io
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from atlas_rl.errors import RecordError, blame
from atlas_rl.records.json_text import from_json, loads
from atlas_rl.records.migration import read_fields, read_record
from atlas_rl.records.shard import END_MARKER, SCHEMA_MESSAGE, SUFFIX, encode_row
from atlas_rl.records.shard_reading import TornRow, read_shard
from atlas_rl.records.trajectory import TOKEN_ARRAYS, Trajectory, TrajectoryHeader
from atlas_rl.records.vocabulary import TerminalReason

_logger = logging.getLogger(__name__)

_WRITER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UID = re.compile(r"[^/\\\x00-\x1f\x7f]+")
"""A uid names files of the export, so it holds no separator and no control character."""


class TrajectoryWriter:
    """Appends trajectories to a new shard of ``folder``; one thread at a time.

    Each row reaches the operating system in one write before ``append`` returns, so a killed process loses at most the
    row it was writing. A crash of the machine may lose more: only ``close`` waits for the disk.
    """

    def __init__(self, folder: Path, writer_id: str) -> None:
        """Create ``folder`` and the first free file WRITER_ID-NNNNN.arrows in it.

        Raises:
            RecordError: ``writer_id`` cannot be part of a file name.
        """
        if not _WRITER_ID.fullmatch(writer_id):
            raise RecordError(f"writer_id {writer_id!r} must match {_WRITER_ID.pattern}; it names the shard's file")
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._file = _create_shard(folder, writer_id)
        self._num_rows = 0
        self._end = 0
        self._write(SCHEMA_MESSAGE)

    def append(self, trajectory: Trajectory) -> str:
        """Write one row and return its sha256 (hex).

        Raises:
            RecordError: the writer is closed, the row cannot be stored exactly, or the disk refused it. A refused row
                leaves no trace in the file; a refusal by the disk closes the writer too.
        """
        where = f"trajectory {trajectory.uid!r}_{trajectory.session_id}"
        if self._file.closed:
            raise RecordError(f"{where}: shard {self.path} is closed; append before close()")
        if not _UID.fullmatch(trajectory.uid):
            raise RecordError(f"{where}: a uid must match {_UID.pattern}; it names files of the export")
        encoded = encode_row(trajectory, self._num_rows)
        _check_round_trip(trajectory, encoded.header, where)
        self._write(encoded.message)
        self._num_rows += 1
        return encoded.sha256

    def close(self) -> None:
        """Write the end marker and wait for the disk. Closing twice is fine."""
        if self._file.closed:
            return
        try:
            self._write(END_MARKER)
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the shard."""
        self.close()

    def _write(self, data: bytes) -> None:
        try:
            written = 0
            while written < len(data):
                written += self._file.write(memoryview(data)[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            self._file.close()
            raise RecordError(
                f"shard {self.path}: {error}; it is closed after {self._num_rows} rows: make room and open a new writer"
            ) from error
        self._end += len(data)


def _create_shard(folder: Path, writer_id: str) -> tuple[Path, io.FileIO]:
    number = 0
    while True:
        path = folder / f"{writer_id}-{number:05d}{SUFFIX}"
        try:
            return path, io.FileIO(path, "x")
        except FileExistsError:
            number += 1


def _check_round_trip(trajectory: Trajectory, header: bytes, where: str) -> None:
    """Refuse what JSON would change, such as a tuple or a number key inside a payload."""
    read = from_json(TrajectoryHeader, header)
    for name in TrajectoryHeader.model_fields:
        if getattr(read, name) != getattr(trajectory, name):
            raise RecordError(
                f"{where}: {name} changes when written as JSON; give str keys, lists and finite numbers only"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """One row of a shard, its token arrays left on disk."""

    file: Path
    row: int
    """Place in its file, from 0."""
    uid: str
    session_id: int
    attempt_id: int
    global_steps: int
    question_id: str
    benchmark: str
    terminal_reason: TerminalReason
    header: bytes
    """ASCII JSON of the trajectory without its token arrays."""
    sha256: str
    """Hex digest over the whole row, token arrays included."""

    @property
    def where(self) -> str:
        """The row and its file, as messages name them."""
        return f"{self.file} row {self.row}: trajectory {self.uid!r}_{self.session_id}"

    def decode(self) -> TrajectoryHeader:
        """The trajectory without its token arrays.

        Raises:
            RecordError: the header is not one that this version reads, or of a newer version.
        """
        try:
            return read_record(TrajectoryHeader, self.header)
        except RecordError as error:
            raise RecordError(f"{self.where}: {error}") from error

    def trajectory(self) -> Trajectory:
        """The whole trajectory, token arrays included, read from its file again.

        Raises:
            RecordError: the file no longer holds this row.
        """
        for found in read_shard(self.file, tokens=True):
            if not isinstance(found, TornRow) and found[0] == self.row and found[1]["sha256"] == self.sha256:
                return _trajectory(self.file, *found)
        raise RecordError(f"{self.file}: row {self.row} with digest {self.sha256} is gone; read the store again")


class TrajectoryStore:
    """Reads every shard under a folder, in the order of their paths.

    The torn last row of a shard whose writer was killed is skipped, logged, and listed in ``torn`` once the shard has
    been read; any other damage raises RecordError. A shard cut exactly between two rows cannot be told from one whose
    writer stopped there: compare counts with the run's manifest.
    """

    def __init__(self, folder: Path) -> None:
        """Find nothing yet: shards are listed anew by each iteration.

        Raises:
            RecordError: ``folder`` is no folder.
        """
        if not folder.is_dir():
            raise RecordError(f"trajectory store {folder}: no such folder; give the folder that the writers wrote to")
        self.folder = folder
        self._torn: dict[Path, TornRow] = {}

    @property
    def torn(self) -> list[TornRow]:
        """The torn rows of the shards read so far."""
        return list(self._torn.values())

    def __iter__(self) -> Iterator[Trajectory]:
        """Every trajectory, whole.

        Raises:
            RecordError: a shard is damaged.
        """
        for file in self.shards():
            for row, columns in self._rows(file, tokens=True):
                yield _trajectory(file, row, columns)

    def headers(self, shards: Sequence[Path] | None = None) -> Iterator[StoredRow]:
        """Every row without its token arrays, or those of the given shards.

        Raises:
            RecordError: a shard is damaged.
        """
        for file in self.shards() if shards is None else shards:
            for row, columns in self._rows(file, tokens=False):
                del columns["row"], columns["tokens_sha256"]
                with blame(RecordError, f"{file} row {row}: written by a newer version, or damaged"):
                    reason = TerminalReason(columns.pop("terminal_reason"))
                yield StoredRow(file=file, row=row, terminal_reason=reason, **columns)

    def get(self, uid: str, session_id: int | None = None) -> list[Trajectory]:
        """The trajectories of one drawn question, of all attempts; empty if there are none.

        Raises:
            RecordError: a shard is damaged.
        """
        wanted = {
            (stored.file, stored.row)
            for stored in self.headers()
            if stored.uid == uid and session_id in (None, stored.session_id)
        }
        return [
            _trajectory(file, row, columns)
            for file in sorted({file for file, _ in wanted})
            for row, columns in self._rows(file, tokens=True)
            if (file, row) in wanted
        ]

    def shards(self) -> list[Path]:
        """The files of the store as they are now, in the order in which they are read."""
        return sorted(self.folder.rglob(f"*{SUFFIX}"))

    def _rows(self, file: Path, *, tokens: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        self._torn.pop(file, None)
        for found in read_shard(file, tokens=tokens):
            if isinstance(found, TornRow):
                self._torn[file] = found
                _logger.warning("torn last row in %s after %d whole rows: %s", file, found.num_rows_before, found.what)
            else:
                yield found


def _trajectory(file: Path, row: int, columns: dict[str, Any]) -> Trajectory:
    try:
        return read_fields(Trajectory, loads(columns["header"]) | {name: columns[name] for name in TOKEN_ARRAYS})
    except RecordError as error:
        where = f"trajectory {columns['uid']!r}_{columns['session_id']}"
        raise RecordError(f"{file} row {row}: {where}: {error}") from error
