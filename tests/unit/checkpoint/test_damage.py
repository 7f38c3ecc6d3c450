"""Every kind of damage to every file of a step is found, named in one line, and never passed over."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_states import is_step, load, save_step

from atlas_rl.checkpoint.latest import latest_step
from atlas_rl.checkpoint.manifest import read_manifest
from atlas_rl.errors import TrainingError

NUM_FILES = 23
"""Three ranks of six files, four of the run and the manifest: all that a step of these tests consists of."""


def cut(content: bytes) -> bytes:
    return content[:-1]


def emptied(_content: bytes) -> bytes:
    return b""


def half_written(content: bytes) -> bytes:
    """As a file system leaves a file whose length it knew and whose pages it lost."""
    half = len(content) // 2
    return content[:half] + bytes(len(content) - half)


def longer(content: bytes) -> bytes:
    return content + b"\n"


def flipped(place: float) -> Callable[[bytes], bytes]:
    def flip(content: bytes) -> bytes:
        at = round(place * (len(content) - 1))
        return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]

    return flip


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    save_step(folder, 1)
    save_step(folder, 2)
    return folder


def files_of(step_folder: Path) -> list[Path]:
    return sorted(path for path in step_folder.rglob("*") if path.is_file())


def refusals(folder: Path) -> list[str]:
    """What loading the newest step, and looking for it, say."""
    said = []
    for attempt in (lambda: load(folder / "global_step_2"), lambda: latest_step(folder)):
        with pytest.raises(TrainingError) as refused:
            attempt()
        said.append(str(refused.value))
    return said


@pytest.mark.parametrize(
    "damage",
    [cut, emptied, half_written, longer, flipped(0), flipped(0.2), flipped(0.5), flipped(0.9), flipped(1)],
    ids=["cut", "emptied", "half_written", "longer", "flip_0", "flip_20", "flip_50", "flip_90", "flip_100"],
)
def test_damage_to_any_file_is_found_and_the_whole_step_before_is_named(
    two_steps: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    folder = shutil.copytree(two_steps, tmp_path / "c")
    assert len(files_of(folder / "global_step_2")) == NUM_FILES
    for path in files_of(folder / "global_step_2"):
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        loading, looking = refusals(folder)
        assert loading.startswith(f"{path}: ")
        assert "restore it from a copy, or resume from another step" in loading
        assert looking == f"{loading}; the newest whole step before it is {folder / 'global_step_1'}"
        assert "\n" not in looking
        path.write_bytes(whole)
    assert is_step(load(folder / "global_step_2"), 2)


def test_a_file_of_another_length_is_told_with_both_lengths(two_steps: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_steps, tmp_path / "c")
    path = folder / "global_step_2" / "critic" / "rank_0" / "trainable.safetensors"
    whole = path.read_bytes()
    for content, kind in ((whole[:100], "cut short"), (whole + b"\0", "too long")):
        path.write_bytes(content)
        loading, _ = refusals(folder)
        assert loading.startswith(f"{path}: {kind}: {len(content)} bytes where {len(whole)} were written; ")


def test_a_missing_file_is_named(two_steps: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_steps, tmp_path / "c")
    for path in files_of(folder / "global_step_2"):
        path.rename(tmp_path / "away")
        loading, looking = refusals(folder)
        assert loading.startswith(f"{path}: not there")
        assert looking == f"{loading}; the newest whole step before it is {folder / 'global_step_1'}"
        (tmp_path / "away").rename(path)


def test_files_of_two_ranks_or_two_steps_cannot_change_places(two_steps: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_steps, tmp_path / "c")
    mine = folder / "global_step_2" / "actor" / "rank_0" / "trainable.safetensors"
    for other in (folder / "global_step_2" / "actor" / "rank_1", folder / "global_step_1" / "actor" / "rank_0"):
        shutil.copy(other / mine.name, mine)
        loading, _ = refusals(folder)
        assert loading.startswith(f"{mine}: damaged: its sha256 is ")


def test_a_folder_under_another_steps_name_is_refused(two_steps: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_steps, tmp_path / "c")
    shutil.rmtree(folder / "global_step_2")
    shutil.copytree(folder / "global_step_1", folder / "global_step_2")
    loading, _ = refusals(folder)
    assert loading == f"{folder}/global_step_2/manifest.json: is of step 1, the folder is global_step_2; rename it back"


def test_a_manifest_that_was_edited_is_refused(two_steps: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_steps, tmp_path / "c")
    path = folder / "global_step_2" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"world_size":2', b'"world_size":1'))
    loading, _ = refusals(folder)
    assert loading.startswith(f"{path}: damaged: its content and its own sha256 do not agree; ")


def test_every_bit_of_a_manifest_counts(two_steps: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_steps, tmp_path / "c")
    path = folder / "global_step_2" / "manifest.json"
    whole = path.read_bytes()
    for at in range(0, len(whole), 37):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with pytest.raises(TrainingError):
                read_manifest(folder / "global_step_2")


def test_with_no_whole_step_left_the_message_says_so(two_steps: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_steps, tmp_path / "c")
    for step in (1, 2):
        (folder / f"global_step_{step}" / "run" / "rng.json").write_bytes(b"")
    _, looking = refusals(folder)
    assert looking.endswith("; no step before it is whole")


def test_a_folder_that_is_no_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="not the folder of a saved step; name one like CHECKPOINTS/global_step_12"):
        load(tmp_path)
    (tmp_path / "global_step_3").mkdir()
    with pytest.raises(TrainingError, match=r"global_step_3/manifest.json: not there; the folder is no complete step"):
        load(tmp_path / "global_step_3")
