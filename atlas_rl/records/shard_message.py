"""The buffers of one record batch, read from its Arrow message without building Arrow arrays.

Arrow makes a decompressor for every buffer of a batch, which costs more than all else that a reader of headers does.
Here the flatbuffer that describes the batch is walked by hand, and one decompressor serves a thread.
"""

import struct
import threading
from collections.abc import Sequence

import pyarrow as pa
import zstandard

_RECORD_BATCH = 3
"""``Message.header_type`` of a record batch."""
_ZSTD = 1
"""``BodyCompression.codec``."""
_MAX_BYTES = 1 << 31
"""Arrow's 32-bit offsets reach no further; a longer buffer is damage."""

_U16, _I32, _U32, _I64 = (struct.Struct(f"<{code}").unpack_from for code in ("H", "i", "I", "q"))
_local = threading.local()


class BatchBuffers:
    """One record batch: how many rows and nulls it has, and its buffers, decompressed when asked for."""

    __slots__ = ("_body", "_buffers", "_is_compressed", "num_nulls", "num_rows")

    def __init__(self, message: pa.Message) -> None:
        """Read the description of the batch.

        Raises:
            ValueError: the message is not a record batch, or its description is damaged.
        """
        try:
            self._read(message.metadata.to_pybytes())
        except (struct.error, IndexError) as error:
            raise ValueError(f"the description of a record batch is damaged: {error}") from error
        self._body = memoryview(message.body)

    def _read(self, data: bytes) -> None:
        root = _U32(data, 0)[0]
        kind = data[_place(data, root, 1)]
        if kind != _RECORD_BATCH:
            raise ValueError(f"a message of type {kind} stands where a record batch belongs")
        batch = _target(data, _place(data, root, 2))
        length = _field(data, batch, 0)
        self.num_rows: int = _I64(data, length)[0] if length else 0
        """Rows of the batch."""
        nodes = _longs(data, _target(data, _place(data, batch, 1)))
        self.num_nulls = sum(nodes[1::2])
        """Nulls of all arrays together."""
        if nodes and nodes[0] != self.num_rows:
            raise ValueError(f"a batch of {self.num_rows} rows has a column of {nodes[0]}")
        self._buffers = _longs(data, _target(data, _place(data, batch, 2)))
        compression = _field(data, batch, 3)
        self._is_compressed = compression != 0
        if compression:
            codec = _field(data, _target(data, compression), 0)
            if not codec or data[codec] != _ZSTD:
                raise ValueError(f"buffers are compressed by codec {data[codec] if codec else 0}, not zstd")

    @property
    def num_buffers(self) -> int:
        """Buffers of the batch."""
        return len(self._buffers) // 2

    def read(self, places: Sequence[int]) -> list[bytes]:
        """The bytes of some buffers, decompressed.

        Raises:
            ValueError: a buffer leaves the message, or does not decompress to the length that it claims.
        """
        buffers, body = self._buffers, self._body
        end_of_body = len(body)
        decompress = _decompressor().decompress
        found: list[bytes] = []
        for place in places:
            offset, length = buffers[2 * place], buffers[2 * place + 1]
            end = offset + length
            if not 0 <= offset <= end <= end_of_body:
                raise ValueError(f"buffer {place} at [{offset}, {end}) leaves a body of {end_of_body} bytes")
            if not self._is_compressed or length == 0:
                found.append(body[offset:end].tobytes())
                continue
            claimed = _I64(body, offset)[0] if length >= 8 else -2
            frame = body[offset + 8 : end]
            if claimed == -1:
                found.append(frame.tobytes())
                continue
            try:
                # Memory is taken only if the frame and the length in front of it agree on how much.
                if not 0 <= claimed < _MAX_BYTES or zstandard.frame_content_size(frame) not in (claimed, -1):
                    raise ValueError(f"buffer {place} claims {claimed} bytes, its frame others")
                data = decompress(frame, max_output_size=claimed)
            except zstandard.ZstdError as error:
                raise ValueError(f"buffer {place} does not decompress: {error}") from error
            if len(data) != claimed:
                raise ValueError(f"buffer {place} claims {claimed} bytes and holds {len(data)}")
            found.append(data)
        return found


def _decompressor() -> zstandard.ZstdDecompressor:
    known: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if known is None:
        known = _local.decompressor = zstandard.ZstdDecompressor()
    return known


# A flatbuffer table finds its fields through a table of 16-bit offsets; a field that is left out has its default.


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table lies; 0 if it is left out."""
    offsets = table - _I32(data, table)[0]
    if offsets < 0:
        raise ValueError("a table of the description leaves it")
    if 2 * number + 6 > _U16(data, offsets)[0]:
        return 0
    offset: int = _U16(data, offsets + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _place(data: bytes, table: int, number: int) -> int:
    """Where a field lies that no record batch leaves out."""
    place = _field(data, table, number)
    if not place:
        raise ValueError(f"the description of a record batch has no field {number}")
    return place


def _target(data: bytes, place: int) -> int:
    """Where the table or vector lies that a field points to."""
    return place + int(_U32(data, place)[0])


def _longs(data: bytes, vector: int) -> tuple[int, ...]:
    """A vector of structs of two signed 64-bit numbers each, as one flat tuple."""
    length = _U32(data, vector)[0]
    if vector + 4 + 16 * length > len(data):
        raise ValueError(f"a vector of {length} entries leaves the description")
    return struct.unpack_from(f"<{2 * length}q", data, vector + 4)
