"""What happened in an episode, as far as its reward cares."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from atlas_rl.errors import RewardError
from atlas_rl.records.breakdown import MAX_EXPLORES
from atlas_rl.records.scoring import AnyEpisode, AnyEvent
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import EventKind, TerminalReason, Verdict
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.exact import add_money


class Facts(NamedTuple):
    """The facts of one episode that its reward is a function of."""

    explores: tuple[AnyEvent, ...]
    submit: AnyEvent | None
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


def read_facts(episode: AnyEpisode, grade: Grade, config: RewardConfig) -> Facts:
    """Read an episode; "revealed" means that the observation was appended, so the policy could read it.

    Raises:
        RewardError: the episode and the grade contradict each other, or an event lacks what it must say.
    """
    where = f"episode {episode.uid}_{episode.session_id}"
    explores: list[AnyEvent] = []
    submits: list[AnyEvent] = []
    for event in episode.events:
        (explores if event.kind is EventKind.EXPLORE else submits).append(event)
        if not event.charged_cost_usd.is_finite():
            raise RewardError(
                f"{where}: charged_cost_usd={event.charged_cost_usd} of event {event.index} is no amount of money; the "
                "record is wrong"
            )
    if len(explores) > MAX_EXPLORES:
        raise RewardError(f"{where}: {len(explores)} explores, a breakdown names {MAX_EXPLORES}; lower max_explores")
    if len(submits) > 1 or (submits and episode.events[-1] is not submits[0]):
        kinds = [str(event.kind) for event in episode.events]
        raise RewardError(f"{where}: a submit ends an episode, but its events are {kinds}; the record is wrong")
    if grade.verdict is Verdict.CORRECT and not submits:
        raise RewardError(f"{where}: graded correct without a submit; grade such an episode as no_answer")
    submit = submits[0] if submits else None
    revealed = [event for event in explores if event.observation_appended]
    labels: list[Any] = [event.payload.get("is_correct") for event in revealed]
    if not all(label is True or label is False for label in labels):
        labels = [_payload(where, event, "is_correct", bool) for event in revealed]  # raises at the first of them
    limit = config.overlong_from_tokens
    cost_usd = _cost(where, revealed)
    return Facts(
        explores=tuple(explores),
        submit=submit,
        seen_correct=tuple(
            event.explore_k or 0 for event, is_correct in zip(revealed, labels, strict=True) if is_correct
        ),
        grader_gap=_has_grader_gap(where, revealed, labels, submit, grade),
        cost_usd=cost_usd,
        cost_total_usd=cost_usd if len(revealed) == len(explores) else _cost(where, explores),
        has_answer=submit is not None and submit.payload_nonempty,
        is_overlong=limit is not None and episode.model_tokens > 0 and episode.response_tokens >= limit,
        is_fault=episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR,
    )


def _cost(where: str, events: Sequence[AnyEvent]) -> Decimal:
    try:
        return add_money([event.charged_cost_usd for event in events])
    except RewardError as error:
        raise RewardError(f"{where}: charged_cost_usd: {error}") from error


def _has_grader_gap(
    where: str, revealed: Sequence[AnyEvent], labels: Sequence[bool], submit: AnyEvent | None, grade: Grade
) -> bool:
    """Whether a revealed candidate has the submitted answer and a label that the grade contradicts."""
    if submit is None or grade.verdict not in (Verdict.CORRECT, Verdict.WRONG):
        return False
    answer = _payload(where, submit, "answer", str).strip()
    is_right = grade.verdict is Verdict.CORRECT
    return any(
        label is not is_right and event.payload_nonempty and _payload(where, event, "answer", str).strip() == answer
        for event, label in zip(revealed, labels, strict=True)
    )


def _payload(where: str, event: AnyEvent, key: str, kind: type) -> Any:
    value = event.payload.get(key)
    if not isinstance(value, kind):
        raise RewardError(
            f"{where}: payload of event {event.index} ({event.kind}) has {key}={value!r}; the runtime must record a "
            f"{kind.__name__} there"
        )
    return value
