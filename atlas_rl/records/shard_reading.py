"""Reading a shard: whole rows in order, a torn end told apart from damage."""

import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
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
from atlas_rl.records.shard_message import BatchBuffers
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
    row, last, start = 0, 0, 0
    with pa.memory_map(str(file)) as source:
        try:
            _check_schema(file, source)
            reader = pa.ipc.MessageReader.open_stream(source)
            reader.read_next_message()
            start = last = source.tell()
            while True:
                try:
                    batch = BatchBuffers(reader.read_next_message())
                except StopIteration:
                    break
                columns = _columns(file, row, batch, tokens=tokens)
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


def _columns(file: Path, row: int, batch: BatchBuffers, *, tokens: bool) -> dict[str, Any]:
    """The row's values, every digest checked."""
    try:
        if batch.num_rows != 1:
            raise ValueError(f"a batch of {batch.num_rows} rows")
        if batch.num_buffers != _NUM_BUFFERS or batch.num_nulls:
            raise ValueError(f"{batch.num_buffers} buffers and {batch.num_nulls} nulls where no value may be null")
        values: dict[str, Any] = {
            name: decode(data) for (name, decode), data in zip(_LIGHT_DECODERS, batch.read(_LIGHT_PLACES), strict=True)
        }
        if values["row"] != row:
            raise ValueError(f"it says it is row {values['row']}")
        if light_digest(values) != values["sha256"]:
            raise ValueError(f"its columns do not have the digest {values['sha256']}")
        if tokens:
            raw = batch.read(_TOKEN_PLACES)
            if tokens_digest(raw) != values["tokens_sha256"]:
                raise ValueError(f"its token arrays do not have the digest {values['tokens_sha256']}")
            values |= {name: _entries(name, data) for name, data in zip(TOKEN_ARRAYS, raw, strict=True)}
    except NOT_ARROW as error:
        raise RecordError(f"{file} row {row}: {' '.join(str(error).split())}; {_REMEDY}") from error
    return values


def _decoder(kind: pa.DataType) -> Callable[[bytes], Any]:
    """What makes the one value of a light column out of its buffer."""
    if pa.types.is_binary(kind):
        return bytes
    if not pa.types.is_integer(kind):
        return bytes.decode
    size, signed = kind.bit_width // 8, not pa.types.is_unsigned_integer(kind)

    def decode(data: bytes) -> int:
        if len(data) != size:
            raise ValueError(f"a number of {len(data)} bytes where {size} belong")
        return int.from_bytes(data, "little", signed=signed)

    return decode


def _entries(name: str, data: bytes) -> list[Any]:
    entries = array(TOKEN_TYPES[name][1])
    entries.frombytes(data)
    return entries.tolist()


# A number has the buffers validity and values, a text validity, offsets and characters, a list of numbers validity,
# offsets, and validity and values of its items. Nothing is null, and one value fills its buffer, so the last of them
# says it all: the digests prove it.
_NUM_LIGHT_BUFFERS = [2 if pa.types.is_integer(kind) else 3 for kind in LIGHT_COLUMNS.values()]
_LIGHT_PLACES = [end - 1 for end in accumulate(_NUM_LIGHT_BUFFERS)]
_LIGHT_DECODERS = [(name, _decoder(kind)) for name, kind in LIGHT_COLUMNS.items()]
_TOKEN_PLACES = [_LIGHT_PLACES[-1] + 4 * (place + 1) for place in range(len(TOKEN_ARRAYS))]
_NUM_BUFFERS = _TOKEN_PLACES[-1] + 1


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
