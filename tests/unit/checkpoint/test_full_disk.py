"""A disk that refuses a write stops the save, names the file, and leaves the step before loadable."""

import errno
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from checkpoint_states import RANKS, RUN, is_step, load, rank_state, run_state, save_step

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.durable import OpenFile, create, write_file
from atlas_rl.checkpoint.latest import latest_step
from atlas_rl.checkpoint.layout import RECEIPTS, leftovers, receipt_name
from atlas_rl.checkpoint.rank_writer import RankWriter
from atlas_rl.checkpoint.receipt import Receipt, leave_receipt, take_receipt
from atlas_rl.errors import TrainingError


class FullDisk:
    """A file on a disk with room for its first bytes."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self._file = file
        self._room = room

    def write(self, data: bytes) -> int:
        self._file.write(data[: self._room])
        if len(data) > self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= len(data)
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()


def full_at(name: str, room: int = 20) -> OpenFile:
    def open_file(path: Path) -> BinaryIO:
        file = path.open("xb")
        return FullDisk(file, room) if path.as_posix().endswith(name) else file  # type: ignore[return-value]

    return open_file


RANK_FILES = [f"actor/rank_1/{name}" for name in ("trainable.safetensors", "optimizer.safetensors", "scheduler.json")]
DRIVER_FILES = ["run/progress.json", "run/dataloader.safetensors", "manifest.json"]


@pytest.mark.parametrize("name", RANK_FILES)
def test_a_rank_that_cannot_write_says_so_at_its_next_call_and_the_step_is_not_committed(
    tmp_path: Path, name: str
) -> None:
    first = save_step(tmp_path, 1)
    with StepCommitter(tmp_path, identity=RUN, code_version="v", anchor_every=1) as committer:
        writers = [RankWriter(model, rank, open_file=full_at(name)) for model, rank in RANKS]
        partial = committer.begin(2)
        for writer in writers:
            writer.save(partial, rank_state(writer.model, writer.rank, 2))
        committer.commit(partial, run_state(2))
        with pytest.raises(TrainingError) as said_by_rank:
            writers[1].save(partial, rank_state("actor", 1, 2))
        with pytest.raises(TrainingError) as said_by_driver:
            committer.wait()
        assert committer.wait() is None
        assert writers[1].wait() is None
    assert str(said_by_rank.value).startswith(
        f"{partial / name}: cannot be written: No space left on device after 0 bytes ("
    )
    assert str(said_by_rank.value).endswith(
        " bytes free there); steps committed before are whole; make room or restore access, then resume the run"
    )
    assert str(said_by_driver.value).startswith(f"actor rank 1: {partial / name}: cannot be written: No space left")
    assert latest_step(tmp_path) == first
    assert is_step(load(first), 1)


@pytest.mark.parametrize("name", DRIVER_FILES)
def test_a_driver_that_cannot_write_names_the_file_and_commits_nothing(tmp_path: Path, name: str) -> None:
    first = save_step(tmp_path, 1)
    with pytest.raises(TrainingError, match=rf"{name}: cannot be written: No space left on device"):
        save_step(tmp_path, 2, open_file=full_at(name))
    assert latest_step(tmp_path) == first
    assert (tmp_path / "latest").read_text() == "global_step_1\n"
    assert is_step(load(first), 1)


def test_a_disk_that_fills_up_at_the_very_last_act_loses_nothing(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    with pytest.raises(TrainingError, match=r"\.latest\.new: cannot be written: No space left on device"):
        save_step(tmp_path, 2, open_file=full_at(".latest.new", room=3))
    assert (tmp_path / "latest").read_text() == "global_step_1\n"
    assert latest_step(tmp_path) == tmp_path / "global_step_2"
    assert is_step(load(tmp_path / "global_step_2"), 2)


def test_the_next_start_makes_room_and_saves_again(tmp_path: Path) -> None:
    with pytest.raises(TrainingError):
        save_step(tmp_path, 1, open_file=full_at("manifest.json"))
    assert len(leftovers(tmp_path)) == 1
    assert latest_step(tmp_path) is None
    assert is_step(load(save_step(tmp_path, 1)), 1)
    assert leftovers(tmp_path) == []


def test_a_device_that_is_really_full_is_told_in_one_line(tmp_path: Path) -> None:
    def on_the_full_device(_path: Path) -> BinaryIO:
        return Path("/dev/full").open("wb")

    with pytest.raises(TrainingError) as refused:
        write_file(tmp_path / "f", [b"x" * 10], on_the_full_device)
    assert str(refused.value).startswith(
        f"{tmp_path / 'f'}: cannot be written: No space left on device after 10 bytes ("
    )
    assert "\n" not in str(refused.value)


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"mine")
    with pytest.raises(TrainingError, match="f: cannot be written: File exists after 0 bytes"):
        write_file(tmp_path / "f", [b"yours"], create)
    assert (tmp_path / "f").read_bytes() == b"mine"


def test_a_rank_that_never_writes_is_named_when_patience_ends(tmp_path: Path) -> None:
    with StepCommitter(tmp_path, identity=RUN, code_version="v", anchor_every=None, patience_seconds=0.2) as committer:
        partial = committer.begin(1)
        writer = RankWriter("actor", 0)
        writer.save(partial, rank_state("actor", 0, 1))
        writer.wait()
        committer.commit(partial, run_state(1))
        with pytest.raises(
            TrainingError, match=r"actor rank 1 \(of 2 missing\) has written nothing for 0 s, so the step"
        ):
            committer.wait()
    assert latest_step(tmp_path) is None


def test_a_receipt_may_be_taken_and_its_folder_moved_before_the_rank_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committing process renames the step's folder as soon as it has seen the last receipt."""
    partial = tmp_path / "partial"
    (partial / receipt_name("actor", 0)).parent.mkdir(parents=True)
    replace = Path.replace

    def and_is_taken_at_once(self: Path, target: Path) -> Path:
        done = replace(self, target)
        if target.parent.name == RECEIPTS:
            replace(partial, tmp_path / "committed")
        return done

    monkeypatch.setattr(Path, "replace", and_is_taken_at_once)
    leave_receipt(partial, Receipt(step=1, model="actor", rank=0, files={}, write_seconds=0.5))
    assert take_receipt(tmp_path / "committed", "actor", 0) is not None
