"""Notes: the free text before a call of which there is one right version, so that a wrong one can be counted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

Note = Callable[[Sequence[str]], str]
"""The right text before a call, given the answers revealed so far in order; empty: no text."""

NoteName = Literal["revealed"]


def expected_note(history: Sequence[str]) -> str:
    """The answers revealed so far, in order, nothing between or around them: A, B, A give ``ABA``.

    Letters are tokens of their own in the demo's tokenizer, so a note has one token an answer.
    """
    return "".join(history)


NOTES: Mapping[NoteName, Note] = {"revealed": expected_note}
"""By the name in a benchmark's field ``note``."""
