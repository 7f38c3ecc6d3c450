"""What is read for scoring says what the whole record says, and nothing that scoring reads is missing."""

import json
from pathlib import Path
from typing import Any

import pytest
from boundary_stage import stage, terse_policy
from record_builders import trajectory

from atlas_rl.records.base import Record
from atlas_rl.records.json_text import from_json, to_json
from atlas_rl.records.scoring import ScoringRow, read_for_scoring
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.trajectory import TOKEN_ARRAYS, Trajectory, TrajectoryHeader
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.rewards.config import Preset, ProcessMode, RewardConfig
from atlas_rl.rewards.placement import place
from atlas_rl.rewards.score import score

CONFIGS = [RewardConfig(preset=preset) for preset in (Preset.BOTH, Preset.EXPLORE_0_01)] + [
    RewardConfig(preset=Preset.DOLLAR_0_1, process_mode=ProcessMode.TERMINAL, overlong_from_tokens=30)
]


def header(row: Trajectory) -> bytes:
    return to_json(row, exclude=TOKEN_ARRAYS)


def records() -> list[Trajectory]:
    """Every ending, every number of explores, and episodes of a random policy under the real grammar."""
    made = [trajectory(reason=reason, explores=2, correct=False) for reason in TerminalReason]
    made += [trajectory(explores=explores, extra={"potentials": {"x": [0.5]}}) for explores in range(9)]
    return made + list(stage(terse_policy, sessions=2))


def assert_part_of(part: Any, whole: Any) -> None:
    """Every field of a part is that of the whole, of the same type down to the bits of its floats."""
    if isinstance(part, Record):
        for name in type(part).model_fields:
            assert_part_of(getattr(part, name), getattr(whole, name))
    elif isinstance(part, tuple):
        assert len(part) == len(whole)
        for left, right in zip(part, whole, strict=True):
            assert_part_of(left, right)
    elif isinstance(part, dict):
        assert part.items() <= whole.items()
    else:
        assert (type(part), repr(part)) == (type(whole), repr(whole))


def test_every_field_is_that_of_the_whole_record_and_scores_to_the_same_bits() -> None:
    for row in records():
        text = header(row)
        part, whole = read_for_scoring(text), from_json(TrajectoryHeader, text)
        assert part is not None
        assert_part_of(part, whole)
        for config in CONFIGS:
            lean, full = (
                score(one.episode, one.grade, config=config, subset=one.reward.subset) for one in (part, whole)
            )
            assert (lean, to_json(lean.breakdown)) == (full, to_json(full.breakdown))
            assert place(lean) == place(full)


def test_fields_that_no_reward_reads_are_left_out() -> None:
    part = read_for_scoring(header(trajectory()))
    assert part is not None
    assert part.episode.events[0].payload == {"answer": "B", "is_correct": False}
    assert "request_id" not in type(part.episode.generations[0]).model_fields


@pytest.mark.parametrize(
    "damage",
    [
        {"file_version": 2},
        {"schema_version": 1},
        {"schema_version": 3},
        {"reward_score": float("nan")},
        {"terminal_reason": "tired"},
        {"model_tokens": 7},
        {"generations": None},
    ],
)
def test_a_row_that_is_not_sound_or_not_of_the_newest_version_is_left_to_the_reader_of_whole_rows(
    damage: dict[str, Any],
) -> None:
    fields = json.loads(header(trajectory()))
    for name, value in damage.items():
        (fields if name in fields else fields["episode"])[name] = value
    assert read_for_scoring(json.dumps(fields).encode()) is None


def test_text_that_only_the_slow_reader_knows_is_left_to_it(tmp_path: Path) -> None:
    row = trajectory(answer="\ud83d")
    assert read_for_scoring(header(row)) is None
    assert read_for_scoring(header(trajectory(answer="\U0001f600"))) is not None


def test_rows_of_version_1_are_left_to_the_migration() -> None:
    stored = TrajectoryStore(Path(__file__).parent / "version_1").headers()
    assert [read_for_scoring(row.header) for row in stored] == [None] * 4


def test_the_part_has_only_names_that_the_record_has() -> None:
    assert set(ScoringRow.model_fields) <= set(TrajectoryHeader.model_fields)
