"""The check of a rollout stage, on records of real episodes: all of it holds, and whatever is changed is found."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from boundary_stage import LIMITS, SESSIONS, manifest, stage, uniform_policy, world

from atlas_rl.errors import RecordError
from atlas_rl.records.json_text import to_json
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import EventKind, Finish, TerminalReason
from atlas_rl.reporting.manifest import Manifest
from atlas_rl.reporting.rollout_check import REACHABLE, ROW_CHECKS, RolloutCheck, check_rollout
from atlas_rl.reporting.rollout_promises import read_promises
from atlas_rl.rewards.config import RewardConfig

NUM_ROWS = 242


def run_folder(folder: Path, rows: list[Trajectory], started: Manifest) -> Path:
    with TrajectoryWriter(folder / "val" / "step_0", "w") as writer:
        for row in rows:
            writer.append(row)
    (folder / "run.json").write_bytes(to_json(started))
    return folder


def checked(folder: Path, rows: list[Trajectory], num_rows: int, *, sessions: int = 1, **runtime: Any) -> RolloutCheck:
    return check_rollout(run_folder(folder, rows, manifest(num_rows, sessions, **runtime)), all_reasons=False)


def ended(reason: TerminalReason, kind: EventKind | None = None) -> Trajectory:
    """A stored episode of the stage that ended so."""
    return next(
        row
        for row in stage(uniform_policy)
        if row.episode.terminal_reason is reason and (kind is None or row.episode.events[-1].kind is kind)
    )


def episode(row: Trajectory, **changes: Any) -> Trajectory:
    return row.model_copy(update={"episode": row.episode.model_copy(update=changes)})


def generation(row: Trajectory, turn: int, **changes: Any) -> Trajectory:
    parts = list(row.episode.generations)
    parts[turn] = parts[turn].model_copy(update=changes)
    return episode(row, generations=tuple(parts))


def event(row: Trajectory, index: int, **changes: Any) -> Trajectory:
    parts = list(row.episode.events)
    parts[index] = parts[index].model_copy(update=changes)
    return episode(row, events=tuple(parts))


def call(row: Trajectory, turn: int, **changes: Any) -> Trajectory:
    parts = list(row.episode.proposed_calls)
    parts[turn] = parts[turn].model_copy(update=changes)
    return episode(row, proposed_calls=tuple(parts))


def put(row: Trajectory, offset: int, token_id: int) -> Trajectory:
    ids = list(row.response_ids)
    ids[offset] = token_id
    return row.model_copy(update={"response_ids": tuple(ids)})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RolloutCheck:
    run = run_folder(tmp_path_factory.mktemp("whole"), list(stage(uniform_policy)), manifest(NUM_ROWS))
    return check_rollout(run, all_reasons=True)


def test_the_whole_stage_keeps_every_promise_and_reaches_every_reason(whole: RolloutCheck) -> None:
    rows, check = stage(uniform_policy), whole
    assert {name: one.failures for name, one in check.invariants.items()} == dict.fromkeys(
        ["complete", "faults", "violations", *ROW_CHECKS, "repeated"], 0
    )
    assert (check.is_passed, check.num_failures, check.missing, check.protocol_violations) == (True, 0, (), 0)
    assert check.num_trajectories == NUM_ROWS * SESSIONS == len(rows)
    assert check.num_generations == sum(row.num_turns for row in rows)
    assert sum(count.episodes for count in check.reasons.values()) == len(rows)
    assert sum(count.response_tokens for count in check.reasons.values()) == sum(len(row.response_ids) for row in rows)
    assert sum(count.model_tokens for count in check.reasons.values()) == sum(sum(row.response_mask) for row in rows)
    assert {reason for reason, count in check.reasons.items() if count.episodes} == set(REACHABLE)


def test_many_drops_are_proven_by_the_same_text_in_another_episode(whole: RolloutCheck) -> None:
    dropped = [row for row in stage(uniform_policy) if row.reward.observation_dropped]
    assert whole.num_drops == len(dropped)
    assert whole.num_drops > whole.num_drops_proven > whole.num_drops / 4


def test_the_file_in_the_run_folder_says_what_was_found(tmp_path: Path) -> None:
    check = checked(tmp_path, [ended(reason) for reason in REACHABLE], 6)
    written = json.loads((tmp_path / "rollout_check.json").read_text())
    assert RolloutCheck.model_validate(written) == check
    assert written["reasons"]["submitted"]["episodes"] == 1
    assert written["reasons"]["multiple_calls"]["episodes"] == 0
    assert written["missing"] == []
    assert written["max_response_length"] == LIMITS.max_response_length


def test_a_missing_reason_fails_only_where_all_are_wanted(tmp_path: Path) -> None:
    run = run_folder(tmp_path, [ended(reason) for reason in REACHABLE[1:]], manifest(5, 1))
    relaxed, strict = check_rollout(run, all_reasons=False), check_rollout(run, all_reasons=True)
    assert relaxed.missing == strict.missing == (TerminalReason.SUBMITTED,)
    assert (relaxed.is_passed, strict.is_passed) == (True, False)


def test_a_run_without_episodes_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(to_json(manifest(0)))
    assert not check_rollout(tmp_path, all_reasons=False).is_passed


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no run\.json in it; give artifacts/RUN"):
        check_rollout(tmp_path, all_reasons=False)


def test_an_episode_that_is_missing_doubled_or_of_another_run_is_found(tmp_path: Path) -> None:
    row = ended(TerminalReason.SUBMITTED)
    stranger = episode(row.model_copy(update={"run_id": "other", "uid": "u-x"}), run_id="other", uid="u-x")
    found = [
        checked(tmp_path / "missing", [row], 2).invariants["complete"],
        checked(tmp_path / "doubled", [row, row], 2).invariants["complete"],
        checked(tmp_path / "stranger", [stranger], 1).invariants["complete"],
    ]
    assert [one.failures for one in found] == [1, 1, 1]
    assert [(one.first or "").split(": ", 1)[1] for one in found] == [
        "1 of 2 episodes are stored", "it is stored 2 times", "it is of run 'other'",
    ]  # fmt: skip


def test_a_torn_shard_is_a_breach(tmp_path: Path) -> None:
    run = run_folder(tmp_path, [ended(reason) for reason in REACHABLE], manifest(6, 1))
    (shard,) = run.rglob("*.arrows")
    shard.write_bytes(shard.read_bytes()[:-100])
    complete = check_rollout(run, all_reasons=False).invariants["complete"]
    assert complete.failures == 2  # the torn row, and the episode that is missing with it
    assert "torn" in (complete.first or "")


def test_a_fault_fails_and_its_half_written_turn_is_not_looked_at(tmp_path: Path) -> None:
    row = ended(TerminalReason.LENGTH)
    fault = episode(row, terminal_reason=TerminalReason.INFRASTRUCTURE_ERROR, error="EngineError: gone")
    check = checked(tmp_path, [fault], 1)
    assert check.invariants["faults"].first == f"{row.uid}_{row.session_id}_a0: EngineError: gone"
    assert (check.num_failures, check.is_passed) == (1, False)


def test_a_violation_fails_with_the_grammar_on_and_is_only_counted_with_it_off(tmp_path: Path) -> None:
    row = ended(TerminalReason.SUBMITTED)
    broken = episode(row, terminal_reason=TerminalReason.NO_CALL, protocol_violations=1)
    on, off = checked(tmp_path / "on", [broken], 1), checked(tmp_path / "off", [broken], 1, grammar=False)
    assert (on.protocol_violations, on.invariants["violations"].failures, on.is_passed) == (1, 1, False)
    assert (off.protocol_violations, off.invariants["violations"].failures) == (1, 0)


def test_an_observation_that_was_dropped_although_it_fits_is_found_through_another_episode(tmp_path: Path) -> None:
    dropped = ended(TerminalReason.EXPLORE_OBSERVATION_DROPPED)
    last = dropped.episode.events[-1]
    shown = ended(TerminalReason.MAX_TURNS)
    text = shown.episode.events[0].tool_response
    length = shown.episode.events[0].observation_length
    assert length <= LIMITS.max_response_length - last.action_end_offset
    claims = event(dropped, last.index, tool_response=text)
    check = checked(tmp_path, [claims, shown], 2)
    assert check.invariants["repeated"].failures == 1
    assert f"its observation of {length} tokens was dropped with " in (check.invariants["repeated"].first or "")


def test_a_text_with_other_ids_than_elsewhere_is_found(tmp_path: Path) -> None:
    row = ended(TerminalReason.MAX_TURNS)
    other = episode(row.model_copy(update={"session_id": 9}), session_id=9)
    offset = row.episode.events[0].observation_offset
    assert offset is not None
    changed_observation = put(other, offset + 3, other.response_ids[offset + 4])
    changed_prompt = other.model_copy(update={"prompt_ids": (*other.prompt_ids[:-1], 0)})
    for name, changed in (("observation", changed_observation), ("prompt", changed_prompt)):
        repeated = checked(tmp_path / name, [row, changed], 2).invariants["repeated"]
        assert repeated.failures == 1
        assert name in (repeated.first or "")


BEGIN = world().tokens.call_begin_id
END_OF_TURN = world().tokens.end_of_turn_id
SUBMITTED, MAX_TURNS = TerminalReason.SUBMITTED, TerminalReason.MAX_TURNS
DROPPED, EXHAUSTED, LENGTH = (
    TerminalReason.EXPLORE_OBSERVATION_DROPPED, TerminalReason.BUDGET_EXHAUSTED, TerminalReason.LENGTH,
)  # fmt: skip

CHANGES: list[tuple[str, TerminalReason, Callable[[Trajectory], Trajectory]]] = [
    ("offsets", SUBMITTED, lambda row: generation(row, 1, response_offset=row.episode.generations[0].num_sampled)),
    ("offsets", SUBMITTED, lambda row: event(row, 0, observation_length=row.episode.events[0].observation_length - 1)),
    ("offsets", SUBMITTED, lambda row: episode(row, response_tokens=row.episode.response_tokens + 1)),
    ("offsets", SUBMITTED, lambda row: episode(row, num_turns=row.num_turns + 1)),
    ("offsets", SUBMITTED, lambda row: generation(row, 0, turn_id=1)),
    ("mask", SUBMITTED, lambda row: row.model_copy(update={"response_mask": (0, *row.response_mask[1:])})),
    ("mask", SUBMITTED, lambda row: episode(row, model_tokens=row.episode.model_tokens - 1)),
    ("mask", SUBMITTED, lambda row: row.model_copy(update={"response_logprobs": (0.25, *row.response_logprobs[1:])})),
    ("mask", EXHAUSTED, lambda row: row.model_copy(update={"response_logprobs": (*row.response_logprobs[:-1], -0.5)})),
    ("forced", SUBMITTED, lambda row: generation(row, 0, forced=((0, 1),))),
    ("budgets", SUBMITTED, lambda row: row.model_copy(update={"prompt_ids": (0,) * (LIMITS.max_prompt_length + 1)})),
    ("budgets", SUBMITTED, lambda row: episode(row, response_tokens=LIMITS.max_response_length + 1)),
    ("budgets", SUBMITTED, lambda row: episode(row, num_turns=LIMITS.max_turns + 1)),
    ("budgets", MAX_TURNS, lambda row: episode(row, max_explores=2)),
    ("budgets", SUBMITTED, lambda row: generation(row, 1, max_tokens=row.episode.generations[1].max_tokens - 1)),
    ("finish", SUBMITTED, lambda row: generation(row, 0, finish=Finish.LENGTH)),
    ("finish", SUBMITTED, lambda row: generation(row, 0, tail_token_ids=row.episode.generations[1].tail_token_ids[1:])),
    ("finish", SUBMITTED, lambda row: put(row, 0, END_OF_TURN)),
    ("finish", SUBMITTED, lambda row: put(row, row.episode.generations[0].num_sampled - 1, 0)),
    ("drops", DROPPED, lambda row: event(row, -1, observation_length=3)),
    ("drops", SUBMITTED, lambda row: event(row, 0, observation_appended=False)),
    ("drops", SUBMITTED, lambda row: event(row, 0, tool_response="")),
    ("grammar", SUBMITTED, lambda row: generation(row, 1, grammar_hash=row.episode.generations[0].grammar_hash)),
    ("grammar", SUBMITTED, lambda row: generation(row, 0, grammar_hash=None)),
    ("grammar", SUBMITTED, lambda row: generation(row, 1, allowed_tools=("explore",))),
    ("grammar", MAX_TURNS, lambda row: episode(row, max_explores=1)),
    ("calls", SUBMITTED, lambda row: put(row, 0, BEGIN)),
    ("calls", SUBMITTED, lambda row: put(row, 0, world().tokens.control_ids[0])),
    ("calls", SUBMITTED, lambda row: call(row, 0, valid=False, reason="no")),
    ("calls", SUBMITTED, lambda row: call(row, 1, arguments={"answer": "Z"})),
    ("calls", SUBMITTED, lambda row: call(row, 0, reason="yet valid")),
    ("calls", LENGTH, lambda row: call(row, -1, valid=True, reason="")),
    ("events", SUBMITTED, lambda row: episode(row, events=row.episode.events[:-1], submit_executed=False)),
    ("events", SUBMITTED, lambda row: event(row, 1, action_start_offset=row.episode.events[1].action_start_offset + 1)),
    ("events", SUBMITTED, lambda row: event(row, 0, prefix_after=2)),
    ("events", SUBMITTED, lambda row: event(row, 0, candidate_idx=1)),
    ("events", SUBMITTED, lambda row: event(row, 1, payload={"answer": "Z"})),
    ("events", SUBMITTED, lambda row: episode(row, explores_executed=2)),
    ("terminal", SUBMITTED, lambda row: episode(row, terminal_reason=TerminalReason.SUBMITTED_OBSERVATION_DROPPED)),
    ("terminal", MAX_TURNS, lambda row: episode(row, terminal_reason=EXHAUSTED)),
    ("terminal", EXHAUSTED, lambda row: episode(row, terminal_reason=MAX_TURNS)),
    ("terminal", LENGTH, lambda row: episode(row, terminal_reason=TerminalReason.NO_CALL)),
    ("terminal", SUBMITTED, lambda row: episode(row, terminal_offset=0)),
    ("terminal", SUBMITTED, lambda row: episode(row, protocol_violations=1)),
    ("terminal", SUBMITTED, lambda row: episode(row, weight_versions=(1,))),
    ("score", SUBMITTED, lambda row: row.model_copy(update={"reward_score": row.reward_score + 1})),
    ("score", SUBMITTED, lambda row: row.model_copy(update={"reward": row.reward.model_copy(update={"penalty": 9.0})})),
    ("score", SUBMITTED, lambda row: row.model_copy(update={"reward_trace": row.reward_trace[1:]})),
    ("mapping", SUBMITTED, lambda row: row.model_copy(update={"reward_trace": row.reward_trace[1:]})),
    ("mapping", SUBMITTED, lambda row: event(row, 0, explore_k=8)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "reason", "change"), CHANGES)
def test_a_changed_record_breaks_the_invariant_that_it_is_about(
    name: str, reason: TerminalReason, change: Callable[[Trajectory], Trajectory]
) -> None:
    promises = read_promises(manifest(NUM_ROWS))
    row = ended(reason)
    assert list(ROW_CHECKS[name](row, promises)) == []
    assert list(ROW_CHECKS[name](change(row), promises)) != []


class Prefix:
    """A potential that is worth as much as candidates are revealed."""

    def value(self, question_id: str, permutation_id: str, candidate_fingerprint: str, prefix: int) -> Fraction:
        return Fraction(prefix)


def test_slots_that_do_not_telescope_are_found() -> None:
    shaped = RewardConfig.from_mapping({"preset": "both", "potentials": {"prefix": 1}})
    promises = replace(read_promises(manifest(NUM_ROWS)), reward=shaped, potential=Prefix())
    row = ended(MAX_TURNS)
    assert list(ROW_CHECKS["decomposition"](row, promises)) == []
    #                       from the 1st to the 2nd candidate, but from nothing
    gap = event(row, 1, prefix_before=0)
    assert list(ROW_CHECKS["decomposition"](gap, promises)) == ["decomposition_error 1.0"]


def test_every_invariant_is_shown_to_find_something() -> None:
    assert {name for name, _, _ in CHANGES} | {"decomposition"} == set(ROW_CHECKS)
