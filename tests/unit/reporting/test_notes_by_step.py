"""Notes are read back from stored rows; a toy alphabet stands in for a tokenizer."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from record_builders import GLUE, SAMPLED, trajectory

from atlas_rl.errors import RecordError
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import Partition, TerminalReason
from atlas_rl.reporting.metrics import MetricsLog
from atlas_rl.reporting.notes import NotesAtStep, read_notes

CALL = 7


def decode(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


def joined(history: Sequence[str]) -> str:
    return "".join(history)


def noted(uid: str, *texts: str, step: int = 1, utility: float = 1.0, **changed: Any) -> Trajectory:
    """A row that explores and always sees a B; before its calls it writes ``texts``, every token at half a nat."""
    payload = {"answer": "B", "reasoning": "", "timed_out": False, "is_correct": False}
    row = trajectory(
        uid, explores=len(texts) - 1, payload=payload, global_steps=step, reward={"utility": utility}, **changed
    )
    ids: list[int] = []
    for text in texts:
        turn = [*map(ord, text), CALL]
        ids += [*turn, *[60] * (SAMPLED - len(turn)), *[0] * GLUE]
    ids = ids[: len(row.response_ids)]
    logprobs = tuple(-0.5 * sampled for sampled in row.response_mask)
    return row.model_copy(update={"response_ids": tuple(ids), "response_logprobs": logprobs})


def store(run: Path, name: str, *rows: Trajectory) -> None:
    with TrajectoryWriter(run / name, "w") as writer:
        for row in rows:
            writer.append(row)


def read(run: Path) -> list[NotesAtStep]:
    return read_notes(run, call_begin_id=CALL, decode=decode, note=joined)


def test_wrong_texts_are_counted_an_episode_and_a_note(tmp_path: Path) -> None:
    #                                       right  right  right       right  wrong
    store(tmp_path, "train", noted("a-1", "", "B", "BB", utility=0.5), noted("b-1", "", "C", utility=-0.5))
    assert read(tmp_path) == [
        NotesAtStep(
            partition=Partition.TRAIN,
            step=1,
            episodes=2,
            infrastructure_errors=0,
            notes=5 / 2,
            wrong_notes=1 / 2,
            wrong_share=1 / 5,
            text_tokens=4 / 5,
            note_nats=0.5 * (4 + 5) / 5,  # four letters and five call-begin tokens
            utility=0.0,
            explores=(2 + 1) / 2,
        )
    ]


def test_text_where_none_belongs_and_a_note_of_another_turn_are_wrong(tmp_path: Path) -> None:
    store(tmp_path, "train", noted("a-1", "B", "B"), noted("b-1", "", ""), noted("c-1", "", "BB"))
    (step,) = read(tmp_path)
    assert (step.wrong_notes, step.wrong_share) == (1.0, 0.5)


def test_training_steps_come_in_order_and_then_the_validations(tmp_path: Path) -> None:
    val = {"partition": Partition.VAL}
    store(tmp_path, "val", noted("v-10", "", "B", step=10, **val), noted("v-0", "C", step=0, **val))
    store(tmp_path, "train", noted("a-10", "", "B", step=10), noted("a-2", "", step=2))
    found = [(one.partition, one.step, one.wrong_notes) for one in read(tmp_path)]
    train, val_ = Partition.TRAIN, Partition.VAL
    assert found == [(train, 2, 0.0), (train, 10, 0.0), (val_, 0, 1.0), (val_, 10, 0.0)]


def test_metrics_of_the_update_join_their_training_step_and_no_validation(tmp_path: Path) -> None:
    store(tmp_path, "train", noted("a-1", ""), noted("a-2", "", step=2))
    store(tmp_path, "val", noted("v-1", "", partition=Partition.VAL))
    with closing(MetricsLog(tmp_path / "metrics.jsonl")) as log:
        log.write(1, {"actor/entropy": 0.75, "actor/ppo_kl": 0.25, "actor/lr": 1.0})
        log.write(1, {"urn_notes/overall/utility": 0.5})
        log.write(2, {"actor/entropy": 9.0, "policy/entropy": 0.5})
        log.write(2, {"actor/entropy": float("nan"), "mismatch/free/logprob_difference_mean": 0.125})
    found = [(one.actor_entropy, one.policy_entropy, one.ppo_kl, one.engine_difference) for one in read(tmp_path)]
    assert found == [(0.75, None, 0.25, None), (None, 0.5, None, 0.125), (None, None, None, None)]


def test_the_latest_attempt_at_a_step_counts(tmp_path: Path) -> None:
    store(tmp_path, "train", noted("a-1", "C"), noted("b-1", "C"), noted("c-1", "", attempt_id=1))
    (step,) = read(tmp_path)
    assert (step.episodes, step.wrong_notes) == (1, 0.0)


def test_faults_are_counted_apart_and_a_step_of_nothing_else_is_left_out(tmp_path: Path) -> None:
    fault = {"reason": TerminalReason.INFRASTRUCTURE_ERROR}
    store(tmp_path, "train", noted("a-1", ""), noted("b-1", "C", "C", **fault), noted("a-2", "C", step=2, **fault))
    (step,) = read(tmp_path)
    assert (step.step, step.episodes, step.infrastructure_errors, step.wrong_notes) == (1, 1, 1, 0.0)


def test_a_generation_without_a_call_is_text_throughout(tmp_path: Path) -> None:
    row = noted("a-1", "BBBBBB", reason=TerminalReason.NO_CALL)
    store(tmp_path, "train", row)
    (step,) = read(tmp_path)
    assert (step.text_tokens, step.wrong_notes, step.note_nats) == (6.0, 1.0, 3.0)


def test_a_run_that_is_not_there_or_stored_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such folder; give artifacts/RUN"):
        read(tmp_path / "none")
    with pytest.raises(RecordError, match="neither train/ nor val/ holds an episode"):
        read(tmp_path)
