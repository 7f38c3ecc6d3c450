"""What the policy wrote before its call in each turn, and what it had seen by then."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from atlas_rl.records.episode import Episode
from atlas_rl.records.vocabulary import EventKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """The free text of one generation and the answers that were revealed before it."""

    text_ids: tuple[int, ...]
    """[N] sampled ids before the first call-begin token; all of them if the generation opens no call."""
    text_start: int
    """Response offset of the first of them, and of the call if there are none."""
    decided_end: int
    """One past the token that ends the text: the call-begin token, or the last sampled one."""
    history: tuple[str, ...]
    """Answers of the explores that had run, in order."""


def turns(episode: Episode, response_ids: Sequence[int], call_begin_id: int) -> Iterator[Turn]:
    """Each generation of an episode as a turn.

    Args:
        episode: The record.
        response_ids: [T] its response tokens.
        call_begin_id: The token that opens a call.
    """
    explores = [event for event in episode.events if event.kind is EventKind.EXPLORE]
    for generation, (start, end) in zip(episode.generations, episode.sampled_spans, strict=True):
        text_ids = tuple(takewhile(lambda token_id: token_id != call_begin_id, response_ids[start:end]))
        yield Turn(
            text_ids=text_ids,
            text_start=start,
            decided_end=min(start + len(text_ids) + 1, end),
            history=tuple(event.payload["answer"] for event in explores if event.turn_id < generation.turn_id),
        )
