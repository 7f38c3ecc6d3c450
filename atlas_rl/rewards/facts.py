"""What happened in an episode, as far as its reward cares."""

from decimal import Decimal
from typing import Any, NamedTuple

from atlas_rl.errors import RewardError
from atlas_rl.records.breakdown import MAX_EXPLORES
from atlas_rl.records.episode import Episode, Event
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import EventKind, TerminalReason, Verdict
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.exact import add_money


class Facts(NamedTuple):
    """The facts of one episode that its reward is a function of."""

    explores: tuple[Event, ...]
    submit: Event | None
    seen_correct: tuple[int, ...]
    """explore_k of the revealed candidates whose label is correct."""
    grader_gap: bool
    cost_usd: Decimal
    """Charged for explores whose observation the policy could read."""
    cost_total_usd: Decimal
    """Charged for every executed explore."""
    has_answer: bool
    is_overlong: bool
    is_fault: bool


def read_facts(episode: Episode, grade: Grade, config: RewardConfig) -> Facts:
    """Read an episode; "revealed" means that the observation was appended, so the policy could read it.

    Raises:
        RewardError: the episode and the grade contradict each other, or an event lacks what it must say.
    """
    where = f"episode {episode.uid}_{episode.session_id}"
    explores = tuple(event for event in episode.events if event.kind is EventKind.EXPLORE)
    submits = [event for event in episode.events if event.kind is EventKind.SUBMIT]
    if len(explores) > MAX_EXPLORES:
        raise RewardError(f"{where}: {len(explores)} explores, a breakdown names {MAX_EXPLORES}; lower max_explores")
    if len(submits) > 1 or (submits and episode.events[-1] is not submits[0]):
        kinds = [str(event.kind) for event in episode.events]
        raise RewardError(f"{where}: a submit ends an episode, but its events are {kinds}; the record is wrong")
    if grade.verdict is Verdict.CORRECT and not submits:
        raise RewardError(f"{where}: graded correct without a submit; grade such an episode as no_answer")
    submit = submits[0] if submits else None
    limit = config.overlong_from_tokens
    return Facts(
        explores=explores,
        submit=submit,
        seen_correct=tuple(
            event.explore_k or 0
            for event in explores
            if event.observation_appended and _payload(where, event, "is_correct", bool)
        ),
        grader_gap=_has_grader_gap(where, explores, submit, grade),
        cost_usd=add_money(event.charged_cost_usd for event in explores if event.observation_appended),
        cost_total_usd=add_money(event.charged_cost_usd for event in explores),
        has_answer=submit is not None and submit.payload_nonempty,
        is_overlong=limit is not None and episode.model_tokens > 0 and episode.response_tokens >= limit,
        is_fault=episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR,
    )


def _has_grader_gap(where: str, explores: tuple[Event, ...], submit: Event | None, grade: Grade) -> bool:
    if submit is None or grade.verdict not in (Verdict.CORRECT, Verdict.WRONG):
        return False
    answer = _payload(where, submit, "answer", str).strip()
    return any(
        event.observation_appended
        and event.payload_nonempty
        and _payload(where, event, "answer", str).strip() == answer
        and _payload(where, event, "is_correct", bool) != (grade.verdict is Verdict.CORRECT)
        for event in explores
    )


def _payload(where: str, event: Event, key: str, kind: type) -> Any:
    value = event.payload.get(key)
    if not isinstance(value, kind):
        raise RewardError(
            f"{where}: payload of event {event.index} ({event.kind}) has {key}={value!r}; the runtime must record a "
            f"{kind.__name__} there"
        )
    return value
