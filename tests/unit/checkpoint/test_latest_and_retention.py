"""Which step is the latest, what is kept, what a start removes, and what it never touches."""

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_states import RUN, is_step, load, rank_state, run_state, save_step, save_with

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.latest import latest_step
from atlas_rl.checkpoint.layout import committed_steps
from atlas_rl.checkpoint.rank_writer import RankWriter
from atlas_rl.checkpoint.retention import surplus
from atlas_rl.errors import ConfigError, TrainingError


def committer_of(folder: Path, anchor_every: int | None = 1) -> StepCommitter:
    return StepCommitter(folder, identity=RUN, code_version="v", anchor_every=anchor_every)


def test_nothing_saved_is_no_step(tmp_path: Path) -> None:
    assert latest_step(tmp_path / "absent") is None
    assert latest_step(tmp_path) is None
    with committer_of(tmp_path) as committer:
        committer.begin(1)
        assert committer.last_step() is None


def test_the_latest_is_the_step_committed_last(tmp_path: Path) -> None:
    for step in (2, 9, 10):
        save_step(tmp_path, step)
    assert latest_step(tmp_path) == tmp_path / "global_step_10"
    assert (tmp_path / "latest").read_text() == "global_step_10\n"


def test_a_step_that_is_complete_but_not_named_yet_is_the_latest_and_gets_named(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    save_step(tmp_path, 2)
    (tmp_path / "latest").write_text("global_step_1\n")  # as a kill between the last two acts leaves it
    assert latest_step(tmp_path) == tmp_path / "global_step_2"
    with committer_of(tmp_path) as committer:
        assert committer.last_step() == tmp_path / "global_step_2"
    assert (tmp_path / "latest").read_text() == "global_step_2\n"


def test_a_first_step_without_the_file_latest_is_the_latest(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    (tmp_path / "latest").unlink()
    with committer_of(tmp_path) as committer:
        assert committer.last_step() == tmp_path / "global_step_1"
    assert (tmp_path / "latest").read_text() == "global_step_1\n"


def test_a_latest_step_that_was_taken_away_is_an_error_that_names_the_one_before(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    shutil.rmtree(save_step(tmp_path, 2))
    with pytest.raises(TrainingError) as refused:
        latest_step(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path}/latest: names global_step_2, which is not there; restore it from a copy, or resume from another "
        f"step; the newest whole step before it is {tmp_path}/global_step_1"
    )


@pytest.mark.parametrize(
    "content", [b"", b"global_step_1", b"global_step_01\n", b"global_step_1\n\n", b"\xff\n", b"2\n"]
)
def test_a_damaged_file_latest_is_an_error_that_says_what_to_write(tmp_path: Path, content: bytes) -> None:
    save_step(tmp_path, 1)
    (tmp_path / "latest").write_bytes(content)
    with pytest.raises(TrainingError, match=r"latest: holds .*, not one line like .*: global_step_1$"):
        latest_step(tmp_path)


@pytest.mark.parametrize(
    ("steps", "latest", "anchor_every", "removed"),
    [
        ([1, 2, 3], 3, None, [1, 2]),
        ([1, 2, 3], 3, 1, []),
        ([5, 10, 12, 15, 17], 17, 5, [12]),
        ([5, 10, 12, 15, 17], 17, 10, [5, 12, 15]),
        ([0, 3], 3, 4, []),
        ([1, 2, 3, 4], 2, None, [1]),
        ([2], 2, None, []),
        ([], 0, None, []),
    ],
)
def test_the_latest_the_anchors_and_what_is_newer_stay(
    steps: list[int], latest: int, anchor_every: int | None, removed: list[int]
) -> None:
    assert surplus(steps, latest, anchor_every) == removed


def test_retention_is_decided_from_the_disk_so_a_resume_goes_on_with_it(tmp_path: Path) -> None:
    for step in (3, 4, 6):
        save_step(tmp_path, step, anchor_every=3)
    assert committed_steps(tmp_path) == [3, 6]
    save_step(tmp_path, 7, anchor_every=None)
    assert committed_steps(tmp_path) == [7]


def test_a_run_of_saves_in_one_process_keeps_anchors_and_the_latest(tmp_path: Path) -> None:
    with committer_of(tmp_path, anchor_every=4) as committer:
        for step in range(1, 11):
            save_with(committer, step)
    assert committed_steps(tmp_path) == [4, 8, 10]
    assert all(is_step(load(tmp_path / f"global_step_{step}"), step) for step in (4, 8, 10))


def test_a_step_being_written_is_not_removed_by_the_retention_of_another(tmp_path: Path) -> None:
    with committer_of(tmp_path, anchor_every=None) as committer:
        save_with(committer, 1)
        written = committer.begin(3)
        save_with(committer, 2)
        assert written.is_dir()


def test_what_a_killed_process_left_is_removed_at_the_next_start_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_step(tmp_path, 1)
    with committer_of(tmp_path) as committer:
        partial = committer.begin(2)
        (partial / "run" / "progress.json").write_bytes(b"{")
    removed = tmp_path / ".global_step_0.removed-0123abcd"
    removed.mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    with caplog.at_level(logging.WARNING), committer_of(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "global_step_1", "latest", "notes.txt"]
    said = "left by a process that was killed while it wrote or removed a step; removed"
    assert [record.message for record in caplog.records] == [f"{removed}: {said}", f"{partial}: {said}"]


def test_a_step_is_not_saved_over_or_before_a_committed_one(tmp_path: Path) -> None:
    save_step(tmp_path, 5)
    with committer_of(tmp_path) as committer:
        for step in (4, 5):
            with pytest.raises(ConfigError, match=rf"step {step} cannot be saved, global_step_5 is there; resume from"):
                committer.begin(step)
        assert committer.begin(6).is_dir()


def test_a_state_of_another_step_is_not_committed(tmp_path: Path) -> None:
    with committer_of(tmp_path) as committer:
        partial = committer.begin(6)
        with pytest.raises(TrainingError, match="begun for step 6, the run's state is of step 5; a bug"):
            committer.commit(partial, run_state(5))


def test_a_rewind_makes_an_earlier_step_the_latest_and_sets_later_ones_aside(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_step(tmp_path, step)
    with committer_of(tmp_path) as committer:
        aside = committer.rewind(1)
        assert committer.last_step() == tmp_path / "global_step_1"
        save_with(committer, 2)
    assert committed_steps(tmp_path) == [1, 2]
    assert [path.name.split("-")[0] for path in aside] == ["abandoned_step_2", "abandoned_step_3"]
    assert all((path / "manifest.json").is_file() for path in aside)


def test_a_rewind_to_a_damaged_step_changes_nothing(tmp_path: Path) -> None:
    save_step(tmp_path, 1)
    save_step(tmp_path, 2)
    (tmp_path / "global_step_1" / "run" / "rng.json").write_bytes(b"")
    with committer_of(tmp_path) as committer, pytest.raises(TrainingError, match=r"rng.json: cut short"):
        committer.rewind(1)
    assert committed_steps(tmp_path) == [1, 2]
    assert (tmp_path / "latest").read_text() == "global_step_2\n"


def test_two_processes_cannot_save_into_one_folder(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from atlas_rl.checkpoint.lock import FolderLock; "
        "from atlas_rl.errors import ConfigError\n"
        "try: FolderLock(Path(sys.argv[1]))\nexcept ConfigError as error: print(error)\nelse: print('taken')"
    )

    def other_process() -> str:
        command = [sys.executable, "-c", script, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    with committer_of(tmp_path):
        refused = other_process()
    assert refused.startswith(f"{tmp_path}: another process (pid ")
    assert refused.endswith(") saves checkpoints here; end it, or choose another folder")
    assert other_process() == "taken"


@pytest.mark.parametrize("anchor_every", [0, -3])
def test_anchors_that_name_no_step_are_refused(tmp_path: Path, anchor_every: int) -> None:
    with pytest.raises(
        ConfigError, match=f"anchor_every must be at least 1, or None for no anchors, got {anchor_every}"
    ):
        committer_of(tmp_path, anchor_every)


@pytest.mark.parametrize("model", ["run", "receipts", "Actor", "a/b", ""])
def test_a_model_whose_name_cannot_be_a_folders_is_refused(model: str) -> None:
    with pytest.raises(ConfigError, match=f"model '{model}' must match .* it names a folder"):
        RankWriter(model, 0)


def test_a_rank_cannot_write_where_no_step_was_begun(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"not a folder that StepCommitter.begin made; save into the one it returned"
    ):
        RankWriter("actor", 0).save(tmp_path, rank_state("actor", 0, 1))
