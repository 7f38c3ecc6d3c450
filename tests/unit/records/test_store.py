"""The store gives back exactly what was written, and never passes damage off as data."""

import logging
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from record_builders import trajectory

from atlas_rl.errors import RecordError
from atlas_rl.records.shard import END_MARKER
from atlas_rl.records.store import TrajectoryStore, TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory, TrajectoryHeader
from atlas_rl.records.vocabulary import TerminalReason


def shard_of(folder: Path, *rows: Trajectory, close: bool = True) -> Path:
    with TrajectoryWriter(folder, "w") as writer:
        for row in rows:
            writer.append(row)
    if not close:  # as a writer leaves it that was killed between two rows
        writer.path.write_bytes(writer.path.read_bytes().removesuffix(END_MARKER))
    return writer.path


def three_rows() -> list[Trajectory]:
    return [trajectory(f"u{place}", explores=place) for place in range(3)]


def read_outcome(folder: Path) -> tuple[list[Trajectory], int]:
    store = TrajectoryStore(folder)
    return list(store), len(store.torn)


def test_rows_come_back_equal_in_the_order_of_shards_and_rows(tmp_path: Path) -> None:
    shard_of(tmp_path / "step_2", trajectory("c"))
    shard_of(tmp_path / "step_1", trajectory("b"), trajectory("a", 3))
    store = TrajectoryStore(tmp_path)
    assert list(store) == [trajectory("b"), trajectory("a", 3), trajectory("c")]
    assert store.torn == []


def test_logprobs_keep_every_bit(tmp_path: Path) -> None:
    values = [-0.0, 5e-324, -1.7976931348623157e308, -0.1, 1 / 3, -2.2250738585072014e-308]
    row = trajectory(explores=0).model_copy(update={"response_logprobs": tuple(values)})
    shard_of(tmp_path, row)
    (read,) = TrajectoryStore(tmp_path)
    assert struct.pack("<6d", *read.response_logprobs) == struct.pack("<6d", *values)


@pytest.mark.parametrize("answer", ["\ud83d", "\x00", "\U0001f600 é \u2028", "</tool_call>", "", '"\\'])
def test_strange_text_survives(tmp_path: Path, answer: str) -> None:
    row = trajectory(answer=answer, observation_text=answer, extra={"text": answer})
    shard_of(tmp_path, row)
    (stored,) = TrajectoryStore(tmp_path).headers()
    assert list(TrajectoryStore(tmp_path)) == [row]
    assert stored.decode().episode == row.episode
    assert stored.header.isascii()


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"x": float("inf")}, "Out of range float"),
        ({"x": float("nan")}, "Out of range float"),
        ({"x": (1, 2)}, "episode changes when written as JSON"),
        ({"x": {1: 2}}, "episode changes when written as JSON"),
        ({"x": {1, 2}}, "is a set"),
    ],
)
def test_a_value_that_json_would_change_is_refused_and_leaves_no_trace(
    tmp_path: Path, payload: dict[str, object], said: str
) -> None:
    with TrajectoryWriter(tmp_path, "w") as writer:
        writer.append(trajectory("before"))
        with pytest.raises(RecordError, match=said):
            writer.append(trajectory("bad", payload=payload))
        writer.append(trajectory("after"))
    assert [row.uid for row in TrajectoryStore(tmp_path)] == ["before", "after"]


@pytest.mark.parametrize("uid", ["a/b", "", "a\x00b", "a\nb", "a\\b"])
def test_a_uid_that_cannot_name_a_file_is_refused(tmp_path: Path, uid: str) -> None:
    with TrajectoryWriter(tmp_path, "w") as writer, pytest.raises(RecordError, match="a uid must match"):
        writer.append(trajectory(uid))


def test_a_question_id_that_utf8_cannot_spell_is_refused(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path, "w") as writer, pytest.raises(RecordError, match="cannot be stored"):
        writer.append(trajectory(question_id="\ud83d"))


def test_a_writer_id_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"writer_id '\.\./w' must match"):
        TrajectoryWriter(tmp_path, "../w")


def test_no_writer_overwrites_a_shard(tmp_path: Path) -> None:
    first = shard_of(tmp_path, trajectory("a"))
    second = shard_of(tmp_path, trajectory("b"))
    assert (first.name, second.name) == ("w-00000.arrows", "w-00001.arrows")
    assert [row.uid for row in TrajectoryStore(tmp_path)] == ["a", "b"]


def test_every_row_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path, "w")
    assert read_outcome(tmp_path) == ([], 0)
    for count in range(1, 4):
        writer.append(trajectory(f"u{count}"))
        assert len(list(TrajectoryStore(tmp_path).headers())) == count
    writer.close()


def test_a_closed_writer_refuses_rows_and_closes_twice(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path, "w")
    writer.close()
    writer.close()
    with pytest.raises(RecordError, match="is closed"):
        writer.append(trajectory())


def test_a_full_disk_takes_the_row_back_and_closes_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TrajectoryWriter(tmp_path, "w")
    writer.append(trajectory("kept"))
    file = writer._file

    class Full:
        """The writer's file, whose disk takes all of a row but its last 100 bytes."""

        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

        def write(self, data: memoryview) -> int:
            if len(data) <= 100:
                raise OSError(28, "No space left on device")
            return file.write(data[:-100])

    monkeypatch.setattr(writer, "_file", Full())
    with pytest.raises(RecordError, match="No space left on device; it is closed after 1 rows"):
        writer.append(trajectory("lost"))
    assert [row.uid for row in TrajectoryStore(tmp_path)] == ["kept"]
    assert read_outcome(tmp_path)[1] == 0


def test_headers_agree_with_the_rows_and_lead_back_to_them(tmp_path: Path) -> None:
    rows = three_rows()
    with TrajectoryWriter(tmp_path, "w") as writer:
        digests = [writer.append(row) for row in rows]
    stored = list(TrajectoryStore(tmp_path).headers())
    assert [row.sha256 for row in stored] == digests
    assert [(row.uid, row.row, row.global_steps, row.question_id, row.benchmark) for row in stored] == [
        ("u0", 0, 1, "q0", "urn"),
        ("u1", 1, 1, "q0", "urn"),
        ("u2", 2, 1, "q0", "urn"),
    ]
    assert stored[0].terminal_reason is TerminalReason.SUBMITTED
    assert [row.trajectory() for row in stored] == rows
    for row, light in zip(rows, stored, strict=True):
        header = light.decode()
        assert type(header) is TrajectoryHeader
        assert all(getattr(header, name) == getattr(row, name) for name in TrajectoryHeader.model_fields)


def test_equal_rows_have_equal_digests_only_at_equal_places(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path, "w") as first, TrajectoryWriter(tmp_path, "w") as second:
        once, twice = first.append(trajectory()), first.append(trajectory())
        assert second.append(trajectory()) == once != twice


def test_get_finds_every_session_and_attempt_of_a_uid(tmp_path: Path) -> None:
    shard_of(tmp_path, trajectory("a", 0), trajectory("b", 0), trajectory("a", 1))
    shard_of(tmp_path, trajectory("a", 0, attempt_id=1))
    store = TrajectoryStore(tmp_path)
    assert [(row.session_id, row.attempt_id) for row in store.get("a")] == [(0, 0), (1, 0), (0, 1)]
    assert [(row.session_id, row.attempt_id) for row in store.get("a", 0)] == [(0, 0), (0, 1)]
    assert store.get("c") == []


def test_a_store_without_its_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such folder"):
        TrajectoryStore(tmp_path / "missing")


def run_script(body: str, folder: Path) -> "subprocess.Popen[str]":
    """Run ``body`` in a fresh interpreter that has a writer and a trajectory; sys.argv[1] is ``folder``."""
    head = (
        "import sys; from pathlib import Path; from record_builders import trajectory\n"
        "from atlas_rl.records.store import TrajectoryStore, TrajectoryWriter\n"
        "writer = TrajectoryWriter(Path(sys.argv[1]), 'w')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", head + body, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_killed_writer_loses_no_row_whose_append_returned(tmp_path: Path) -> None:
    with run_script("while True: print(writer.append(trajectory(glue=3000)), flush=True)", tmp_path) as process:
        assert process.stdout is not None
        digests = [process.stdout.readline() for _ in range(20)]
        process.kill()
        digests += process.stdout.readlines()
    read = [row.sha256 for row in TrajectoryStore(tmp_path).headers()]
    whole = [digest.strip() for digest in digests if digest.endswith("\n")]
    assert read[: len(whole)] == whole
    assert len(read) <= len(whole) + 1


def test_neither_writing_nor_reading_imports_pandas_or_torch(tmp_path: Path) -> None:
    body = "writer.append(trajectory()); list(TrajectoryStore(Path(sys.argv[1]))); print(*sys.modules)"
    with run_script(body, tmp_path) as process:
        modules = set(process.communicate()[0].split())
    assert "pyarrow" in modules
    assert modules.isdisjoint({"pandas", "torch", "verl", "transformers", "xgrammar"})


# ------------------------------------------------------------------------------------------------ torn ends


def row_ends(file: Path) -> list[int]:
    """Byte offsets behind the schema and behind each row."""
    with pa.memory_map(str(file)) as source:
        reader = pa.ipc.open_stream(source)
        ends = [source.tell()]
        for _ in reader:
            ends.append(source.tell())
    return ends[:-1] if len(ends) > 4 else ends


@pytest.mark.parametrize("close", [True, False])
def test_a_shard_cut_at_any_byte_gives_its_whole_rows_and_reports_the_torn_one(tmp_path: Path, close: bool) -> None:
    rows = three_rows()
    file = shard_of(tmp_path, *rows, close=close)
    data, ends = file.read_bytes(), row_ends(file)
    near_ends = {end + shift for end in [*ends, len(data)] for shift in range(-17, 18)}
    for cut in sorted(near_ends.union(range(0, len(data), 41)).intersection(range(len(data)))):
        file.write_bytes(data[:cut])
        store = TrajectoryStore(tmp_path)
        num_whole = sum(end <= cut for end in ends[1:])
        assert [row.uid for row in store.headers()] == [row.uid for row in rows[:num_whole]], cut
        assert [torn.num_rows_before for torn in store.torn] == ([] if cut in ends else [num_whole]), cut


def test_a_torn_row_is_logged_and_the_other_shards_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = shard_of(tmp_path, trajectory("a"), trajectory("b"), close=False)
    shard_of(tmp_path, trajectory("c"))
    file.write_bytes(file.read_bytes()[:-1])
    store = TrajectoryStore(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert [row.uid for row in store] == ["a", "c"]
    assert [row.uid for row in store.headers()] == ["a", "c"]
    assert [(torn.file, torn.num_rows_before) for torn in store.torn] == [(file, 1)]
    assert "torn last row" in caplog.text


# ------------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("close", [True, False])
def test_no_flipped_bit_gives_a_wrong_row_or_hides_one(tmp_path: Path, close: bool) -> None:
    rows = three_rows()
    file = shard_of(tmp_path, *rows, close=close)
    data, ends = file.read_bytes(), row_ends(file)
    messages: list[str] = []
    for place in range(0, len(data), 29):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place // 29 % 8)
        file.write_bytes(damaged)
        try:
            read, num_torn = read_outcome(tmp_path)
        except RecordError as error:
            messages.append(str(error))
            continue
        if num_torn:
            # Only the framing of a last row without an end marker looks like a cut.
            assert not close or place >= ends[-1], place
            assert place >= ends[2], place
            assert read == rows[: 3 if place >= ends[-1] else 2], place
        else:
            assert read == rows, place
    assert all(str(file) in message and "\n" not in message for message in messages)
    assert len(messages) > len(data) / 29 * 0.5


def swap_rows(data: bytes, ends: list[int]) -> bytes:
    return data[: ends[0]] + data[ends[1] : ends[2]] + data[ends[0] : ends[1]] + data[ends[2] :]


def drop_a_row(data: bytes, ends: list[int]) -> bytes:
    return data[: ends[0]] + data[ends[1] :]


def repeat_a_row(data: bytes, ends: list[int]) -> bytes:
    return data[: ends[1]] + data[ends[0] :]


def zero_a_block(data: bytes, ends: list[int]) -> bytes:
    return data[: ends[0]] + bytes(ends[1] - ends[0]) + data[ends[1] :]


def append_junk(data: bytes, ends: list[int]) -> bytes:
    return data + b"junk"


def cut_the_first_row(data: bytes, ends: list[int]) -> bytes:
    return data[: ends[1] - 64] + data[ends[1] :]


@pytest.mark.parametrize("damage", [swap_rows, drop_a_row, repeat_a_row, zero_a_block, append_junk, cut_the_first_row])
def test_damage_before_the_end_names_the_file_and_stops(
    tmp_path: Path, damage: Callable[[bytes, list[int]], bytes]
) -> None:
    file = shard_of(tmp_path, *three_rows())
    file.write_bytes(damage(file.read_bytes(), row_ends(file)))
    with pytest.raises(RecordError, match=r"w-00000\.arrows"):
        list(TrajectoryStore(tmp_path).headers())


def test_a_sound_row_whose_length_swallows_the_last_row_is_damage(tmp_path: Path) -> None:
    file = shard_of(tmp_path, trajectory("a"), trajectory("b"), close=False)
    data = bytearray(file.read_bytes())
    with pa.memory_map(str(file)) as source:
        pa.ipc.open_stream(source)
        begin = source.tell()
    with pa.BufferReader(bytes(data[begin:])) as source:
        body = pa.ipc.read_message(source).body.size
        row_size = source.tell()
    place = data.index(struct.pack("<q", body), begin)
    data[place : place + 8] = struct.pack("<q", body + len(data) - begin - row_size)
    file.write_bytes(data)
    with pytest.raises(RecordError, match=r"row 0: it claims the bytes of a row at byte"):
        list(TrajectoryStore(tmp_path).headers())


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    with pa.OSFile(str(tmp_path / "x.arrows"), "wb") as sink, pa.ipc.new_stream(sink, pa.schema([("a", pa.int32())])):
        pass
    with pytest.raises(RecordError, match="are not shard version 1"):
        list(TrajectoryStore(tmp_path).headers())
