"""Advantages by kind of call, from hand-made tensors of a step."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_builders import trajectory

from atlas_rl.errors import RecordError
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.reporting.call_advantage import Call, CallAdvantage, call_advantage

# 6 sampled tokens a turn, 4 observed ones between two turns: a turn's number is the raw advantage of its tokens.


def step(run: Path, number: int, *rows: Trajectory, unstored: tuple[Trajectory, ...] = (), **arrays: Any) -> Path:
    """A step's folder; ``arrays`` replaces arrays by UID__NAME."""
    folder = run / "train" / f"step_{number}"
    lines, tensors = [], {}
    with TrajectoryWriter(folder, "w") as writer:
        for row in (*rows, *unstored):
            digest = None if row in unstored else writer.append(row)
            is_fault = row.episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR
            lines.append({"row": f"{row.uid}_0", "record_sha256": digest, "is_fault": is_fault})
            if is_fault:
                continue
            mask = np.array(row.response_mask, dtype=bool)
            turn = np.cumsum(np.diff(mask.astype(int), prepend=0) == 1).astype(np.float32)
            values = {"raw_advantages": turn * mask, "advantages": -turn * mask, "policy_mask": mask}
            for name, array in values.items():
                tensors[f"{row.uid}_0/{name}"] = arrays.get(f"{row.uid}__{name}", array)
    np.savez(folder / "tensors.npz", **tensors)
    (folder / "manifest.json").write_text(json.dumps({"step": number, "num_rows": len(lines), "rows": lines}))
    return folder


def lines(run: Path, number: int = 0) -> dict[Call, tuple[Any, ...]]:
    return {line.call: line[2:] for line in call_advantage(run).steps[number].lines}


def test_each_kind_of_call_has_the_tokens_of_its_own_turns(tmp_path: Path) -> None:
    silent = trajectory("c", explores=1, reason=TerminalReason.LENGTH, correct=False)
    step(tmp_path, 1, trajectory("a", explores=3), trajectory("b", explores=0), silent)
    #                          rows calls tokens policy raw           whitened
    assert lines(tmp_path) == {
        Call.SUBMIT:          (2, 2, 12, 12, (4 + 1) / 2, -(4 + 1) / 2),
        Call.FIRST_EXPLORE:   (2, 2, 12, 12, 1.0, -1.0),
        Call.LATER_EXPLORES:  (1, 2, 12, 12, (2 + 3) / 2, -(2 + 3) / 2),
        Call.OTHER:           (1, 1, 6, 6, 2.0, -2.0),
        Call.UNRECORDED:      (0, None, None, 0, None, None),
        Call.ALL:             (3, 7, 42, 42, 2.0, -2.0),
    }  # fmt: skip


def test_only_tokens_of_the_policy_loss_are_averaged_and_both_are_counted(tmp_path: Path) -> None:
    row = trajectory("a", explores=0)
    step(tmp_path, 1, row, a__policy_mask=np.array([1, 0, 0, 1, 0, 0], dtype=bool),
         a__raw_advantages=np.array([0.5, 9, 9, 1.5, 9, 9], dtype=np.float32))  # fmt: skip
    assert lines(tmp_path)[Call.SUBMIT] == (1, 1, 6, 2, 1.0, -1.0)


def test_a_capped_row_has_calls_and_no_mean(tmp_path: Path) -> None:
    step(tmp_path, 1, trajectory("a", explores=0), a__policy_mask=np.zeros(6, dtype=bool))
    assert lines(tmp_path)[Call.SUBMIT] == (1, 1, 6, 0, None, None)


def test_rows_that_were_not_stored_are_counted_with_their_tokens(tmp_path: Path) -> None:
    step(tmp_path, 1, trajectory("a", explores=0), unstored=(trajectory("b", explores=1),))
    found = lines(tmp_path)
    assert found[Call.UNRECORDED] == (1, None, None, 12, 1.5, -1.5)
    assert found[Call.ALL] == (2, None, None, 18, (6 * 1 + 6 * 1 + 6 * 2) / 18, -(6 * 1 + 6 * 1 + 6 * 2) / 18)
    assert found[Call.SUBMIT] == (1, 1, 6, 6, 1.0, -1.0)


def test_a_fault_has_no_advantage_and_is_counted(tmp_path: Path) -> None:
    fault = trajectory("f", reason=TerminalReason.INFRASTRUCTURE_ERROR, correct=False)
    step(tmp_path, 1, trajectory("a", explores=0), fault)
    (found,) = call_advantage(tmp_path).steps
    assert found.num_faults == 1
    assert found.lines[-1][:3] == (1, Call.ALL, 1)


def test_steps_are_in_the_order_of_their_numbers_and_an_unfinished_one_is_named(tmp_path: Path) -> None:
    for number in (10, 2):
        step(tmp_path, number, trajectory("a"))
    with TrajectoryWriter(tmp_path / "train" / "step_11", "w") as writer:
        writer.append(trajectory("a"))
    found = call_advantage(tmp_path)
    assert [part.lines[0].step for part in found.steps] == [2, 10]
    assert found.unfinished == (11,)


def test_rows_of_an_earlier_attempt_are_left_to_it(tmp_path: Path) -> None:
    folder = step(tmp_path, 1, trajectory("a", explores=0, attempt_id=1))
    with TrajectoryWriter(folder, "w") as writer:
        writer.append(trajectory("a", explores=4, attempt_id=0))
    assert lines(tmp_path)[Call.ALL][:3] == (1, 1, 6)


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("a__policy_mask", np.zeros(5, dtype=bool), "row a_0 have lengths {'raw_advantages': 6, 'advantages': 6"),
        ("a__advantages", np.full(6, np.nan, dtype=np.float32), "a_0/advantages holds what is no finite number"),
    ],
)
def test_tensors_that_are_broken_are_refused(tmp_path: Path, name: str, array: Any, said: str) -> None:
    step(tmp_path, 1, trajectory("a", explores=0), **{name: array})
    with pytest.raises(RecordError) as caught:
        call_advantage(tmp_path)
    assert said in str(caught.value)


def test_files_of_a_step_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    folder = step(tmp_path, 1, trajectory("a", explores=0))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["rows"][0]["record_sha256"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RecordError, match=r"the record of row a_0 with digest 0{64} is not in the store"):
        call_advantage(tmp_path)
    (folder / "manifest.json").unlink()
    with pytest.raises(RecordError, match=r"manifest\.json: .* a step that was trained has one"):
        call_advantage(tmp_path)


def test_a_run_without_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no train/step_N in it"):
        call_advantage(tmp_path)


def test_the_columns_are_those_of_the_guide() -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "replay.md"
    text = guide.read_text("utf-8")
    assert all(f"`{name}`" in text for name in CallAdvantage._fields)
    assert all(f"`{call}`" in text for call in Call)
