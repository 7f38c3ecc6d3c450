"""Builders of small episodes: one call says each turn, and the offsets follow."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from atlas_rl.records.episode import Episode, Event, Generation, ProposedCall, Sampling
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import (
    PROTOCOL_VIOLATIONS,
    EventKind,
    Finish,
    FinishSource,
    TerminalReason,
    Verdict,
)
from atlas_rl.rewards.config import RewardConfig


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One generation of ``tokens`` tokens, what it did, and the observation that followed."""

    kind: EventKind | None
    tokens: int
    observation: int
    """0: the tool has none, or it was dropped."""
    payload: dict[str, Any]
    cost: str = "0"


def explore(tokens: int = 3, *, shows: int = 2, cost: str = "0", answer: str = "B", right: bool = False) -> Turn:
    """Explore that reveals ``answer``; ``shows=0`` drops the observation."""
    payload = {"answer": answer, "reasoning": "", "timed_out": not answer, "is_correct": right}
    return Turn(kind=EventKind.EXPLORE, tokens=tokens, observation=shows, payload=payload, cost=cost)


def submit(tokens: int = 3, *, answer: str = "A") -> Turn:
    """Submit without a response."""
    return Turn(kind=EventKind.SUBMIT, tokens=tokens, observation=0, payload={"answer": answer})


def talk(tokens: int = 3) -> Turn:
    """Sample tokens without a call that runs."""
    return Turn(kind=None, tokens=tokens, observation=0, payload={})


def episode(*turns: Turn, reason: TerminalReason = TerminalReason.SUBMITTED, **changes: Any) -> Episode:
    """Lay the turns side by side from offset 0."""
    offset, revealed = 0, 0
    generations: list[Generation] = []
    events: list[Event] = []
    calls: list[ProposedCall] = []
    for turn_id, turn in enumerate(turns):
        end = offset + turn.tokens
        generations.append(_generation(turn_id, offset, turn.tokens))
        if turn.kind is not None:
            k = revealed + 1 if turn.kind is EventKind.EXPLORE else None
            events.append(_event(turn, len(events), turn_id, offset, end, revealed, k))
            revealed = k or revealed
        calls.append(_call(turn, turn_id))
        offset = end + turn.observation
    last = [g.response_offset + g.num_sampled - 1 for g in generations if g.num_sampled]
    fields: dict[str, Any] = {
        "run_id": "run", "uid": "u1", "session_id": 0, "attempt_id": 0, "benchmark": "urn", "question_id": "q1",
        "permutation_id": "p1", "candidate_fingerprint": "f1", "submission_field": "answer", "max_explores": 8,
        "weight_versions": (0,), "prompt_tokens": 5, "response_tokens": offset,
        "model_tokens": sum(turn.tokens for turn in turns), "num_turns": len(turns), "terminal_reason": reason,
        "terminal_offset": last[-1] if last else None,
        "explores_executed": sum(turn.kind is EventKind.EXPLORE for turn in turns),
        "submit_executed": any(turn.kind is EventKind.SUBMIT for turn in turns),
        "protocol_violations": int(reason in PROTOCOL_VIOLATIONS), "generations": tuple(generations),
        "proposed_calls": tuple(calls), "events": tuple(events),
    }  # fmt: skip
    return Episode(**(fields | changes))


def _generation(turn_id: int, offset: int, tokens: int) -> Generation:
    return Generation(
        turn_id=turn_id, request_id="r", weight_version=0, response_offset=offset, num_sampled=tokens, max_tokens=99,
        finish=Finish.EOS, finish_source=FinishSource.STOP_TOKEN, tail_token_ids=(), grammar_hash=None,
        allowed_tools=("explore", "submit"), sampling=Sampling(temperature=1, top_p=1, top_k=-1, seed=0),
        num_cached_tokens=None,
    )  # fmt: skip


def _event(turn: Turn, index: int, turn_id: int, start: int, end: int, revealed: int, k: int | None) -> Event:
    assert turn.kind is not None
    return Event(
        index=index, turn_id=turn_id, kind=turn.kind, action_start_offset=start, action_end_offset=end, explore_k=k,
        candidate_idx=None if k is None else k - 1, prefix_before=revealed, prefix_after=k or revealed,
        charged_cost_usd=Decimal(turn.cost), payload=turn.payload, payload_nonempty=bool(turn.payload["answer"]),
        tool_response="", observation_appended=bool(turn.observation),
        observation_offset=end if turn.observation else None, observation_length=turn.observation,
    )  # fmt: skip


def _call(turn: Turn, turn_id: int) -> ProposedCall:
    return ProposedCall(
        turn_id=turn_id, name=turn.kind, arguments={}, raw_text="", valid=turn.kind is not None, reason="",
        extra_calls=0,
    )  # fmt: skip


def grade(verdict: Verdict) -> Grade:
    """Give a verdict without a grader."""
    return Grade(grader="exact", version="1", verdict=verdict, seconds=0.0, detail="")


CORRECT, WRONG, NO_ANSWER = grade(Verdict.CORRECT), grade(Verdict.WRONG), grade(Verdict.NO_ANSWER)


def shaped(config: RewardConfig = RewardConfig()) -> RewardConfig:
    """Return the config with one potential, which the test passes to ``score``."""
    return replace(config, potentials=(("table", Decimal(1)),))


@dataclass(frozen=True)
class Table:
    """A potential that reads ``values[prefix]``."""

    values: tuple[float, ...]
    seen: Callable[..., None] = lambda *_: None

    def value(self, question_id: str, permutation_id: str, candidate_fingerprint: str, prefix: int) -> float:
        """Return the value of the prefix."""
        self.seen(question_id, permutation_id, candidate_fingerprint, prefix)
        return self.values[prefix]
