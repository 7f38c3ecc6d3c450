"""Buffers read by hand are those that Arrow reads."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from record_builders import trajectory

from atlas_rl.records.shard import LIGHT_COLUMNS, SCHEMA
from atlas_rl.records.shard_message import BatchBuffers
from atlas_rl.records.shard_reading import TornRow, read_shard
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import TOKEN_ARRAYS


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    with TrajectoryWriter(tmp_path, "w") as writer:
        for explores in range(9):
            writer.append(trajectory(f"u{explores}é", explores=explores, glue=7 * explores + 1, global_steps=2**40))
    return writer.path


def rows(file: Path, *, tokens: bool) -> list[dict[str, Any]]:
    found = list(read_shard(file, tokens=tokens))
    assert not any(isinstance(row, TornRow) for row in found)
    return [row[1] for row in found if not isinstance(row, TornRow)]


@pytest.mark.parametrize("tokens", [False, True])
def test_every_column_is_what_arrow_reads(shard: Path, tokens: bool) -> None:
    with pa.memory_map(str(shard)) as source:
        expected = [batch.to_pylist()[0] for batch in pa.ipc.open_stream(source)]
    names = [*LIGHT_COLUMNS, *(TOKEN_ARRAYS if tokens else ())]
    assert rows(shard, tokens=tokens) == [{name: row[name] for name in names} for row in expected]


@pytest.mark.parametrize("options", [pa.ipc.IpcWriteOptions(), pa.ipc.IpcWriteOptions(compression="lz4")])
def test_a_shard_that_was_rewritten_is_read_or_refused_but_never_misread(
    tmp_path: Path, shard: Path, options: pa.ipc.IpcWriteOptions
) -> None:
    copy = tmp_path / "copy.arrows"
    with (
        pa.memory_map(str(shard)) as source,
        pa.OSFile(str(copy), "wb") as sink,
        pa.ipc.new_stream(sink, SCHEMA, options=options) as stream,
    ):
        for batch in pa.ipc.open_stream(source):
            stream.write_batch(batch)
    if options.compression is None:
        assert rows(copy, tokens=True) == rows(shard, tokens=True)
    else:
        with pytest.raises(Exception, match="codec 0, not zstd"):
            rows(copy, tokens=True)


def test_only_a_record_batch_is_read_as_one(shard: Path) -> None:
    with pa.memory_map(str(shard)) as source:
        schema = pa.ipc.MessageReader.open_stream(source).read_next_message()
    with pytest.raises(ValueError, match="a message of type 1 stands where a record batch belongs"):
        BatchBuffers(schema)
