"""Reading a shard: whole rows in order, a torn end told apart from damage."""

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from atlas_rl.errors import RecordError
from atlas_rl.records.shard import (
    END_MARKER,
    LIGHT_COLUMNS,
    MARKER,
    NOT_ARROW,
    SCHEMA,
    SHARD_VERSION,
    TOKEN_TYPES,
    light_digest,
    tokens_digest,
)
from atlas_rl.records.trajectory import TOKEN_ARRAYS

_REMEDY = "the file is damaged: restore it from a copy, or move it out of the store"


@dataclass(frozen=True, slots=True, kw_only=True)
class TornRow:
    """The end of a shard whose writer was killed: the bytes of a last row that is not whole."""

    file: Path
    num_rows_before: int
    """Whole rows of the file, all of which were read."""
    what: str


def read_shard(file: Path, *, tokens: bool) -> Iterator[tuple[int, dict[str, Any]] | TornRow]:
    """Yield (row, columns) of each row in order, and at last a ``TornRow`` if the file ends inside one.

    Without ``tokens`` the columns are the light ones, else the token arrays come too, as lists. Digests are checked.

    Raises:
        RecordError: the file is no shard, or is damaged anywhere but by a cut at its end.
    """
    if file.stat().st_size == 0:
        yield TornRow(file=file, num_rows_before=0, what="the file is empty")
        return
    names = [*LIGHT_COLUMNS, *TOKEN_ARRAYS] if tokens else list(LIGHT_COLUMNS)
    options = pa.ipc.IpcReadOptions(included_fields=[SCHEMA.get_field_index(name) for name in names], use_threads=False)
    row, last, start = 0, 0, 0
    with pa.memory_map(str(file)) as source:
        try:
            _check_schema(file, source)
            reader = pa.ipc.open_stream(source, options=options)
            start = last = source.tell()
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    break
                columns = _columns(file, row, batch, names)
                last, start = start, source.tell()
                yield row, columns
                row += 1
        except NOT_ARROW as error:
            yield _torn_or_damaged(file, row, start, _whole_message_behind(source, row, last), source, error)
            return
        if source.tell() != source.size():
            behind = source.size() - source.tell()
            raise RecordError(f"{file}: {behind} bytes after the end marker behind {row} rows; {_REMEDY}")
        if (whole := _whole_message_behind(source, row, last)) is not None:
            raise RecordError(f"{file} row {row - 1}: it claims the bytes of a row at byte {whole}; {_REMEDY}")


def _check_schema(file: Path, source: pa.NativeFile) -> None:
    found = pa.ipc.open_stream(source).schema
    source.seek(0)
    if not found.equals(SCHEMA, check_metadata=True):
        raise RecordError(
            f"{file}: its columns {found.names} and metadata {found.metadata} are not shard version "
            f"{SHARD_VERSION}; read it with the version that wrote it"
        )


def _columns(file: Path, row: int, batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, Any]:
    """The row's values, every digest checked."""
    try:
        batch.validate(full=True)
        if batch.num_rows != 1:
            raise ValueError(f"a batch of {batch.num_rows} rows")
        values = {name: batch.column(place)[0].as_py() for place, name in enumerate(names) if name in LIGHT_COLUMNS}
        if values["row"] != row:
            raise ValueError(f"it says it is row {values['row']}")
        if light_digest(values) != values["sha256"]:
            raise ValueError(f"its columns do not have the digest {values['sha256']}")
        if len(names) > len(LIGHT_COLUMNS):
            raw = [_entries(batch.column(names.index(name)), TOKEN_TYPES[name][1]) for name in TOKEN_ARRAYS]
            if tokens_digest([entries.tobytes() for entries in raw]) != values["tokens_sha256"]:
                raise ValueError(f"its token arrays do not have the digest {values['tokens_sha256']}")
            values |= {name: entries.tolist() for name, entries in zip(TOKEN_ARRAYS, raw, strict=True)}
    except NOT_ARROW as error:
        raise RecordError(f"{file} row {row}: {' '.join(str(error).split())}; {_REMEDY}") from error
    return values


def _entries(column: pa.ListArray, typecode: str) -> "array[Any]":
    values = column.flatten()
    if column.null_count or values.null_count:
        raise ValueError("a token array holds nulls")
    entries = array(typecode)
    buffer = values.buffers()[1]
    if buffer is not None:
        begin = values.offset * entries.itemsize
        entries.frombytes(memoryview(buffer)[begin : begin + len(values) * entries.itemsize])
    return entries


def _torn_or_damaged(
    file: Path, row: int, start: int, whole: int | None, source: pa.NativeFile, error: BaseException
) -> TornRow:
    """Tell a cut at the end of the file from damage: a cut leaves no whole message and no end marker behind it."""
    what = " ".join(str(error).split())
    size = source.size()
    if size % 8 == 0 and size - start >= 8 and _bytes_from(source, size - 8) == END_MARKER:
        behind = "the end marker follows"
    elif whole is not None:
        behind = f"a whole row lies at byte {whole}"
    elif start % 8:
        behind = "rows start at multiples of 8 bytes"
    else:
        return TornRow(file=file, num_rows_before=row, what=f"{size - start} bytes from byte {start} on: {what}")
    raise RecordError(f"{file} row {row} at byte {start}: {what}, yet {behind}; {_REMEDY}") from error


def _bytes_from(source: pa.NativeFile, start: int) -> bytes:
    """What the mapping holds from ``start`` on; the file itself may have grown since."""
    source.seek(start)
    return bytes(source.read())


def _whole_message_behind(source: pa.NativeFile, row: int, last: int) -> int | None:
    """Offset of a whole record batch behind the last row read, which starts at ``last``; None if there is none.

    A damaged length makes a sound row swallow its successors, so the search starts inside that row.
    """
    data = _bytes_from(source, last)
    place = data.find(MARKER, 8 if row else 0)
    while place >= 0:
        if place % 8 == 0 and place + 8 <= len(data):
            (length,) = struct.unpack_from("<i", data, place + 4)
            if 0 < length <= len(data) - place - 8 and _is_record_batch(data, place):
                return last + place
        place = data.find(MARKER, place + 1)
    return None


def _is_record_batch(data: bytes, place: int) -> bool:
    try:
        return bool(pa.ipc.read_message(pa.py_buffer(memoryview(data)[place:])).type == "record batch")
    except NOT_ARROW:
        return False
