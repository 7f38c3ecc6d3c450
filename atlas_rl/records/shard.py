"""The format of a shard: an Arrow IPC stream with one record batch a trajectory.

Token arrays are columns of their own, so that a reader of headers neither reads nor decompresses them. Every row has
a sha256 over all its columns and its place in the file: a flipped bit, a swapped or a missing row cannot pass unseen.
"""

import hashlib
import io
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from atlas_rl.errors import RecordError
from atlas_rl.records.json_text import to_json
from atlas_rl.records.trajectory import TOKEN_ARRAYS, Trajectory

SUFFIX = ".arrows"
SHARD_VERSION = 1

LIGHT_COLUMNS: dict[str, pa.DataType] = {
    "row": pa.uint32(),
    "uid": pa.string(),
    "session_id": pa.int32(),
    "attempt_id": pa.int32(),
    "global_steps": pa.int64(),
    "question_id": pa.string(),
    "benchmark": pa.string(),
    "terminal_reason": pa.string(),
    "header": pa.binary(),
    "tokens_sha256": pa.string(),
    "sha256": pa.string(),
}
"""All columns but the token arrays; ``row`` counts from 0 in each file."""
_SHORT_BYTES = 1024
"""Values shorter than this are joined before they are hashed: a call costs more than a copy."""
_DIGESTED = tuple(name for name in LIGHT_COLUMNS if name != "sha256")

TOKEN_TYPES: dict[str, tuple[pa.DataType, str]] = {
    "prompt_ids": (pa.int32(), "i"),
    "response_ids": (pa.int32(), "i"),
    "response_logprobs": (pa.float64(), "d"),
    "response_mask": (pa.uint8(), "B"),
}
"""Arrow type and array typecode of one entry of each token array; ids are below 2**31, logprobs keep every bit."""

SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=False) for name, kind in LIGHT_COLUMNS.items()]
    + [pa.field(name, pa.list_(TOKEN_TYPES[name][0]), nullable=False) for name in TOKEN_ARRAYS],
    metadata={"atlas_rl.shard_version": str(SHARD_VERSION)},
)

MARKER = b"\xff\xff\xff\xff"
"""Opens every message of an Arrow stream, always at a multiple of 8 bytes."""
END_MARKER = MARKER + b"\x00\x00\x00\x00"
"""Closes a shard whose writer finished."""
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
NOT_ARROW = (pa.ArrowException, OSError, ValueError, KeyError, MemoryError, OverflowError)
"""What pyarrow raises on bytes that are no whole, sound message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRow:
    """One row as it goes to disk."""

    message: bytes
    """The record batch as a message of the stream."""
    header: bytes
    sha256: str


def encode_row(trajectory: Trajectory, row: int) -> EncodedRow:
    """Encode one trajectory for place ``row`` of its shard.

    Raises:
        RecordError: a value does not fit its column or has no JSON form.
    """
    try:
        tokens = {name: array(TOKEN_TYPES[name][1], getattr(trajectory, name)) for name in TOKEN_ARRAYS}
        values: dict[str, Any] = {
            "row": row,
            "uid": trajectory.uid,
            "session_id": trajectory.session_id,
            "attempt_id": trajectory.attempt_id,
            "global_steps": trajectory.global_steps,
            "question_id": trajectory.question_id,
            "benchmark": trajectory.benchmark,
            "terminal_reason": trajectory.episode.terminal_reason.value,
            "header": to_json(trajectory, exclude=TOKEN_ARRAYS),
            "tokens_sha256": tokens_digest([tokens[name].tobytes() for name in TOKEN_ARRAYS]),
        }
        values["sha256"] = light_digest(values)
        columns = [_one_value(kind, values[name]) for name, kind in LIGHT_COLUMNS.items()]
        columns += [_one_list(TOKEN_TYPES[name][0], tokens[name]) for name in TOKEN_ARRAYS]
    except NOT_ARROW as error:
        raise RecordError(
            f"trajectory {trajectory.uid!r} cannot be stored: {error}; fix the value at its source"
        ) from error
    message = _stream(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))[len(SCHEMA_MESSAGE) : -len(END_MARKER)]
    return EncodedRow(message=message, header=values["header"], sha256=values["sha256"])


# Arrays are made from buffers because pa.array imports pandas, seconds in the middle of a step.


def _one_value(kind: pa.DataType, value: int | str | bytes) -> pa.Array:
    if isinstance(value, int):
        data = value.to_bytes(kind.bit_width // 8, "little", signed=not pa.types.is_unsigned_integer(kind))
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(data)])
    data = value if isinstance(value, bytes) else value.encode()
    return pa.Array.from_buffers(kind, 1, [None, _offsets(len(data)), pa.py_buffer(data)])


def _one_list(kind: pa.DataType, entries: "array[Any]") -> pa.Array:
    values = pa.Array.from_buffers(kind, len(entries), [None, pa.py_buffer(entries.tobytes())])
    return pa.Array.from_buffers(pa.list_(kind), 1, [None, _offsets(len(entries))], children=[values])


def _offsets(length: int) -> pa.Buffer:
    return pa.py_buffer(array("i", [0, length]).tobytes())


def _stream(*batches: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, SCHEMA, options=_WRITE_OPTIONS) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()


def light_digest(values: dict[str, Any]) -> str:
    """Sha256 (hex) over the light columns; the token arrays enter through ``tokens_sha256``."""
    digest = hashlib.sha256()
    short: list[bytes] = []
    for name in _DIGESTED:
        value = values[name]
        data = value if isinstance(value, bytes) else str(value).encode()
        short.append(b"%d:" % len(data))
        if len(data) < _SHORT_BYTES:
            short.append(data)
        else:
            digest.update(b"".join(short))
            digest.update(data)
            short.clear()
    digest.update(b"".join(short))
    return digest.hexdigest()


SCHEMA_MESSAGE = _stream()[: -len(END_MARKER)]
"""Opens every shard."""


def tokens_digest(raw: Sequence[bytes]) -> str:
    """Sha256 (hex) over the bytes of the token arrays, in the order of TOKEN_ARRAYS."""
    digest = hashlib.sha256()
    for data in raw:
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()
