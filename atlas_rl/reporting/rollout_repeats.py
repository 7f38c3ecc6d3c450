"""What the episodes of a run tell about each other: the same text has the same ids wherever it stands.

An observation that was dropped left no tokens, so its own record cannot prove that it did not fit. Another episode in
which the same text was appended tells its length.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from atlas_rl.records.trajectory import Trajectory
from atlas_rl.reporting.rollout_promises import Promises
from atlas_rl.reporting.rollout_tokens import is_dropped, tokens_left


class _Drop(NamedTuple):
    where: str
    text: bytes
    """Digest of the observation's text."""
    tokens_left: int


class Repeats:
    """Remembers the prompts and observations of the episodes that it is shown."""

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._prompts: dict[bytes, bytes] = {}
        self._observations: dict[bytes, tuple[bytes, int]] = {}
        """Digest of the text -> digest and number of its ids."""
        self._drops: list[_Drop] = []

    @property
    def num_drops(self) -> int:
        """Observations that were dropped."""
        return len(self._drops)

    @property
    def num_proven(self) -> int:
        """Those of them whose length another episode tells."""
        return sum(drop.text in self._observations for drop in self._drops)

    def prompt_faults(self, row: Trajectory) -> Iterator[str]:
        """All prompts of a question and permutation are equal."""
        ids = _digest(row.prompt_ids)
        first = self._prompts.setdefault(_named(row.benchmark, row.question_id, row.permutation_id), ids)
        if first != ids:
            yield f"its prompt is not that of the other episodes of question {row.question_id!r}"

    def observation_faults(self, row: Trajectory) -> Iterator[str]:
        """All observations of one text have the same ids; dropped ones are kept for ``drop_faults``."""
        generations = {one.turn_id: one for one in row.episode.generations}
        for event in row.episode.events:
            text = _named(row.benchmark, event.tool_response)
            if event.observation_appended and event.observation_offset is not None:
                ids = row.response_ids[event.observation_offset :][: event.observation_length]
                seen = (_digest(ids), len(ids))
                if self._observations.setdefault(text, seen) != seen:
                    yield f"observation {event.tool_response[:40]!r} has other ids than in another episode"
            elif is_dropped(event) and event.turn_id in generations:
                left = tokens_left(generations[event.turn_id], self._promises)
                self._drops.append(_Drop(name_of(row), text, left))

    def drop_faults(self) -> Iterator[tuple[str, str]]:
        """Episode and fault of each observation that was dropped although it fits; after all episodes were shown."""
        for drop in self._drops:
            length = self._observations.get(drop.text, (b"", drop.tokens_left + 1))[1]
            if length <= drop.tokens_left:
                yield drop.where, f"its observation of {length} tokens was dropped with {drop.tokens_left} left"


def name_of(row: Trajectory) -> str:
    """How messages name an episode."""
    return f"{row.uid}_{row.session_id}_a{row.attempt_id}"


def _digest(ids: Sequence[int]) -> bytes:
    return hashlib.sha256(repr(tuple(ids)).encode()).digest()


def _named(*texts: str) -> bytes:
    return hashlib.sha256(repr(texts).encode()).digest()
