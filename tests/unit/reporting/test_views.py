"""Validation views average what the policy did, and only that."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from record_builders import trajectory

from atlas_rl.errors import RecordError
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.reporting.views import validation_views, write_val_dump


def test_the_overall_view_of_two_rows_and_a_fault() -> None:
    rows = [
        trajectory("a", explores=2, reward={"utility": 0.75, "cost": Decimal("0.5"), "submitted_after_correct": True}),
        trajectory(
            "b",
            explores=1,
            reason=TerminalReason.LENGTH,
            correct=False,
            reward={"length_capped": True, "utility": -0.5},
        ),
        trajectory("c", reason=TerminalReason.INFRASTRUCTURE_ERROR, reward={"utility": 99.0}),
    ]
    view = validation_views(rows)
    assert all(key.startswith("urn/overall/") for key in view)
    means = {key.removeprefix("urn/overall/"): value for key, value in view.items() if "terminal/" not in key}
    assert means == {
        "count": 2,
        "infrastructure_errors": 1,
        "acc": 0.5,
        "cost": pytest.approx(0.25, abs=1e-6),
        "reward": 1.0,
        "explores": 1.5,
        "utility": 0.125,
        "has_answer": 0.5,
        "did_submit": 0.5,
        "overlong": 0.0,
        "length_capped": 0.5,
        "invalid_call": 0.0,
        "protocol_violations": 0.0,
        "model_tokens": 18.0,
        "response_tokens": 26.0,
        "submitted_after_correct": 0.5,
    }
    assert {key.rpartition("/")[2]: value for key, value in view.items() if "terminal/" in key} == {
        "submitted": 0.5,
        "submitted_observation_dropped": 0.0,
        "explore_observation_dropped": 0.0,
        "budget_exhausted": 0.0,
        "length": 0.5,
        "no_call": 0.0,
        "invalid_call": 0.0,
        "multiple_calls": 0.0,
        "max_turns": 0.0,
        "infrastructure_error": 0.0,
    }


def test_rows_fall_into_their_benchmark_their_subset_or_the_rest() -> None:
    rows = [
        trajectory("a", reward={"subset": "hard"}),
        trajectory("b", correct=False),
        trajectory("c", reward={"subset": "easy"}),
        trajectory("d", benchmark="gsm8k"),
    ]
    view = validation_views(rows)
    assert {key: value for key, value in view.items() if key.endswith(("/count", "/acc"))} == {
        "gsm8k/overall/acc": 1.0,
        "gsm8k/overall/count": 1,
        "urn/overall/acc": pytest.approx(2 / 3),
        "urn/overall/count": 3,
        "urn/rest/acc": 0.0,
        "urn/rest/count": 1,
        "urn/subset/easy/acc": 1.0,
        "urn/subset/easy/count": 1,
        "urn/subset/hard/acc": 1.0,
        "urn/subset/hard/count": 1,
    }


def test_a_view_of_faults_alone_has_counts_and_no_means() -> None:
    rows = [trajectory(reason=TerminalReason.INFRASTRUCTURE_ERROR)]
    assert validation_views(rows) == {"urn/overall/count": 0, "urn/overall/infrastructure_errors": 1}
    assert validation_views([]) == {}


def test_a_subset_that_would_break_the_key_is_refused() -> None:
    with pytest.raises(RecordError, match="subset 'a/b' holds a '/'"):
        validation_views([trajectory(reward={"subset": "a/b"})])


def test_the_dump_holds_the_texts_and_the_breakdown_of_each_row(tmp_path: Path) -> None:
    rows = [(trajectory("a"), "prompt \ud83d", "response\n"), (trajectory("b", correct=False), "", "")]
    path = write_val_dump(tmp_path / "val_dumps", 7, rows)
    assert path == tmp_path / "val_dumps" / "7.jsonl"
    first, second = (json.loads(line) for line in path.read_text("ascii").splitlines())
    assert list(first)[:8] == ["input", "output", "gts", "score", "step", "uid", "objective", "final_reward"]
    assert (first["input"], first["output"], first["gts"], first["score"]) == ("prompt \ud83d", "response\n", "B", 1.0)
    assert (first["step"], first["uid"], first["acc"], first["cost"]) == (7, "a", 1.0, "0.0000002")
    assert (second["uid"], second["acc"]) == ("b", 0.0)


def test_validating_a_step_again_replaces_its_dump_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_val_dump(tmp_path, 7, [(trajectory("a"), "", "")])
    path = write_val_dump(tmp_path, 7, [])
    assert path.read_bytes() == b""
    assert "step 7 was validated again" in caplog.text
