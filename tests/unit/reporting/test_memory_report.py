"""memory_check.json: its figures are those of its stages, and it says what is missing."""

import json
from pathlib import Path

import pytest
from memory_records import head, passes, rank, stage

from atlas_rl.errors import RecordError
from atlas_rl.reporting.memory import GIB, MemoryReport, Stage, memory_report, read_memory_report, write_memory_report

UPDATE = stage(Stage.UPDATE_ACTOR, 1, rank(passes=(passes(),)))


def test_a_report_comes_back_as_it_was_written(tmp_path: Path) -> None:
    report = memory_report(head("models", "update_actor/1"), [stage(Stage.MODELS, None), UPDATE])
    write_memory_report(tmp_path, report)
    assert read_memory_report(tmp_path) == report
    assert report.faults(0.0) == []


def test_the_margin_is_what_was_left_at_the_peak_of_the_worst_rank_and_stage() -> None:
    #                                  free at the end  held then  at the peak  left at the peak
    easy = stage(Stage.VALUES, 1, rank(0, free=40, held=90, peak=95))
    tight = stage(Stage.UPDATE_ACTOR, 1, rank(0, free=40, held=90, peak=95), rank(1, free=40, held=90, peak=118))
    report = memory_report(head(world_size=2), [easy, tight])
    assert report.margin_bytes == 12 * GIB
    assert report.peak_bytes == 118 * GIB
    assert report.host_margin_bytes == 70 * GIB


def test_what_another_process_took_of_the_card_for_a_moment_counts() -> None:
    one = rank(free=40, device_least_free_bytes=3 * GIB)
    assert one.margin_bytes == 3 * GIB


@pytest.mark.parametrize(
    ("expected", "stages", "fault"),
    [
        (("models",), [], "not measured on every rank: models"),
        (("update_actor/1",), [stage(Stage.UPDATE_ACTOR, 2, rank(passes=(passes(),)))], "update_actor/1"),
        (("models",), [stage(Stage.MODELS, None, rank(out_of_memory="CUDA out of memory"))], "models"),
        ((), [stage(Stage.UPDATE_ACTOR, 1, rank(passes=(passes(updates=0),)))], "no optimizer step was made in"),
        ((), [stage(Stage.UPDATE_CRITIC, 1, rank(passes=(passes("actor"),)))], "no optimizer step was made in"),
        ((), [stage(Stage.VALUES, 1, rank(passes=(passes(longest_row=9),)))], "had 9 tokens, not 1536"),
    ],
)
def test_what_is_missing_is_named(expected: tuple[str, ...], stages: list, fault: str) -> None:
    faults = memory_report(head(*expected), stages).faults(0.0)
    assert any(fault in one for one in faults), faults


def test_a_rank_that_did_not_answer_makes_a_stage_missing() -> None:
    report = memory_report(head("models", world_size=2), [stage(Stage.MODELS, None, rank(0))])
    assert report.missing == ("models",)


def test_too_little_room_is_a_fault_with_both_numbers() -> None:
    report = memory_report(head(), [UPDATE])
    assert report.faults(30.0) == []
    assert report.faults(30.5) == ["the margin is 30.00 GiB, below 30.5; lower a token budget"]


def test_figures_that_contradict_the_stages_are_refused(tmp_path: Path) -> None:
    write_memory_report(tmp_path, memory_report(head(), [UPDATE]))
    file = tmp_path / "memory_check.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"margin_bytes": 99 * GIB}))
    with pytest.raises(RecordError, match="but the stages say") as caught:
        read_memory_report(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", '{"report_version": 2}'])
def test_a_damaged_file_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "memory_check.json").write_text(content)
    with pytest.raises(RecordError, match=r"memory_check.json: .*run the check again") as caught:
        read_memory_report(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        read_memory_report(tmp_path)


def test_a_check_that_stopped_says_why() -> None:
    report: MemoryReport = memory_report(head(), [UPDATE], "rank 0 ran out")
    assert report.faults(0.0) == ["stopped: rank 0 ran out"]
