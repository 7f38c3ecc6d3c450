"""Builders of whole, valid trajectories for the tests of every room that reads records."""

from decimal import Decimal
from typing import Any

from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.episode import Episode, Event, Generation, ProposedCall, Sampling
from atlas_rl.records.trajectory import Grade, PlacedReward, Trajectory
from atlas_rl.records.vocabulary import (
    PROTOCOL_VIOLATIONS,
    EventKind,
    Finish,
    FinishSource,
    Partition,
    TerminalReason,
    Verdict,
)

SAMPLED = 6
"""Tokens of every sampled generation."""
GLUE = 4
"""Tokens of every observation."""


def trajectory(
    uid: str = "q0-u0",
    session_id: int = 0,
    *,
    explores: int = 2,
    reason: TerminalReason = TerminalReason.SUBMITTED,
    correct: bool = True,
    answer: str = "B",
    observation_text: str = "candidate says B",
    payload: dict[str, Any] | None = None,
    prompt_length: int = 5,
    glue: int = GLUE,
    reward: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None,
    question_id: str = "q0",
    benchmark: str = "urn",
    attempt_id: int = 0,
    global_steps: int = 1,
    partition: Partition = Partition.TRAIN,
) -> Trajectory:
    """A trajectory of ``explores`` explores and, if ``reason`` is submitted, one submit.

    prompt [prompt_length], then for each explore 6 sampled tokens and ``glue`` observation tokens, then 6 sampled ones.
    """
    submit = reason is TerminalReason.SUBMITTED
    num_turns = explores + 1
    response_tokens = explores * (SAMPLED + glue) + SAMPLED
    events = [_explore(index, observation_text, payload, glue) for index in range(explores)]
    if submit:
        events.append(_submit(explores, answer, glue))
    episode = Episode(
        run_id="run-a",
        uid=uid,
        session_id=session_id,
        attempt_id=attempt_id,
        benchmark=benchmark,
        question_id=question_id,
        permutation_id="p0",
        candidate_fingerprint="f" * 64,
        submission_field="answer",
        max_explores=8,
        weight_versions=(0,),
        prompt_tokens=prompt_length,
        response_tokens=response_tokens,
        model_tokens=num_turns * SAMPLED,
        num_turns=num_turns,
        terminal_reason=reason,
        terminal_offset=response_tokens - 1,
        explores_executed=explores,
        submit_executed=submit,
        protocol_violations=int(reason in PROTOCOL_VIOLATIONS),
        error="engine went away" if reason is TerminalReason.INFRASTRUCTURE_ERROR else None,
        generations=tuple(_generation(turn, glue) for turn in range(num_turns)),
        proposed_calls=tuple(_call(turn, turn < explores, answer) for turn in range(num_turns)),
        events=tuple(events),
    )
    mask = ([1] * SAMPLED + [0] * glue) * explores + [1] * SAMPLED
    return Trajectory(
        run_id="run-a",
        uid=uid,
        session_id=session_id,
        attempt_id=attempt_id,
        benchmark=benchmark,
        question_id=question_id,
        permutation_id="p0",
        candidate_fingerprint="f" * 64,
        data_source=benchmark,
        partition=partition,
        global_steps=global_steps,
        num_turns=num_turns,
        prompt_ids=tuple(range(prompt_length)),
        response_ids=tuple(range(1000, 1000 + response_tokens)),
        response_logprobs=tuple(-0.1 / (place + 1) if sampled else 0.0 for place, sampled in enumerate(mask)),
        response_mask=tuple(mask),
        reward_score=1.0,
        reward=breakdown(explores=explores, correct=correct, did_submit=submit, **(reward or {})),
        reward_trace=(PlacedReward(offset=response_tokens - 1, value=1.0),),
        ground_truth="B",
        grade=Grade(
            grader="exact",
            version="1",
            verdict=Verdict.CORRECT if correct else Verdict.WRONG,
            seconds=0.25,
            detail="",
        ),
        written_at="2026-01-02T03:04:05.000006+00:00",
        extra=extra or {},
        episode=episode,
    )


def breakdown(*, explores: int = 2, correct: bool = True, did_submit: bool = True, **changes: Any) -> Breakdown:
    """A breakdown with plain values; ``changes`` replaces fields by name."""
    values: dict[str, Any] = {
        "objective": float(correct),
        "final_reward": float(correct),
        "training_reward": float(correct),
        "utility": float(correct),
        "acc": float(correct),
        "num_explores": explores,
        "cost": Decimal("0.0000001") * explores,
        "cost_total": Decimal("0.0000001") * explores,
        "penalty": 0.0,
        "overlong": False,
        "overlong_penalty": 0.0,
        "format_score": 0.0,
        "has_answer": did_submit,
        "did_submit": did_submit,
        "discovery": False,
        "integration": False,
        "grader_gap": False,
        "subset": "",
        "potential_stop": 0.0,
        "potential_defined": True,
        **{f"explore_reward_{k}": 0.0 for k in range(1, 9)},
        "terminal_reward": float(correct),
        "terminal_reason_code": 0,
        "protocol_violations": 0,
        "invalid_call": False,
        "length_capped": False,
        "observation_dropped": False,
        "num_turns": explores + 1,
        "prompt_tokens": 5,
        "response_tokens": 26,
        "model_tokens": 18,
        "first_correct_k": 0,
        "found_correct": False,
        "submitted_after_correct": False,
        "process_mode_code": 1,
    }
    return Breakdown(**(values | changes))


def _generation(turn: int, glue: int) -> Generation:
    return Generation(
        turn_id=turn,
        request_id="r",
        weight_version=0,
        response_offset=turn * (SAMPLED + glue),
        num_sampled=SAMPLED,
        max_tokens=64,
        finish=Finish.EOS,
        finish_source=FinishSource.STOP_TOKEN,
        tail_token_ids=(1, 2, 3),
        grammar_hash="a" * 64,
        allowed_tools=("explore", "submit"),
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=-1, seed=7),
        num_cached_tokens=None,
    )


def _call(turn: int, is_explore: bool, answer: str) -> ProposedCall:
    return ProposedCall(
        turn_id=turn,
        name="explore" if is_explore else "submit",
        arguments={} if is_explore else {"answer": answer},
        raw_text="{}" if is_explore else answer,
        valid=True,
        reason="",
        extra_calls=0,
    )


def _explore(index: int, text: str, payload: dict[str, Any] | None, glue: int) -> Event:
    start = index * (SAMPLED + glue)
    return Event(
        index=index,
        turn_id=index,
        kind=EventKind.EXPLORE,
        action_start_offset=start,
        action_end_offset=start + SAMPLED,
        explore_k=index + 1,
        candidate_idx=index,
        prefix_before=index,
        prefix_after=index + 1,
        charged_cost_usd=Decimal("0.0000001"),
        payload=payload or {"answer": "B", "reasoning": text, "timed_out": False, "is_correct": False},
        payload_nonempty=True,
        tool_response=text,
        observation_appended=True,
        observation_offset=start + SAMPLED,
        observation_length=glue,
    )


def _submit(index: int, answer: str, glue: int) -> Event:
    start = index * (SAMPLED + glue)
    return Event(
        index=index,
        turn_id=index,
        kind=EventKind.SUBMIT,
        action_start_offset=start,
        action_end_offset=start + SAMPLED,
        explore_k=None,
        candidate_idx=None,
        prefix_before=index,
        prefix_after=index,
        charged_cost_usd=Decimal(0),
        payload={"answer": answer},
        payload_nonempty=bool(answer),
        tool_response="",
        observation_appended=False,
        observation_offset=None,
        observation_length=0,
    )
