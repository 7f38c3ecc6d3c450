"""The place of a generation in its grammar, without asking the matcher for what it has answered before.

An engine needs two things of each generation at each step: whether the sampled token is legal, and the mask of what may
follow. XGrammar answers in 10 to 40 microseconds at 151,936 tokens, which a batch of 256 pays 256 times a step. Most of
it is asked again and again: in free text the mask never changes, and calls are short and alike. So masks are numbered
rows of a table, free text is a counter, and the first tokens of calls are a tree of known places. Wherever the tree has
not been, or may not grow, the matcher answers; the masks are its own, bit for bit, in any case.
"""

import os
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atlas_rl.grammar.free_text import FreeText, free_text

EVERYTHING = 0
"""Number of the mask that allows every token: after the end of turn nothing is constrained."""
UNNUMBERED = -1
"""In place of a number: the mask is not in the table and must be filled in by the matcher."""

MAX_MASKS = 1024
"""Most rows of a table: 19 MiB at 151,936 tokens."""
MAX_PLACES = 8192
"""Most places that one grammar remembers."""
MAX_DEPTH = 64
"""Longest remembered way from the start, in tokens."""
_MIN_THREADED = 8
"""Fewest rows that are worth waking threads for."""


class MaskTable:
    """The distinct masks of one vocabulary, each stored once under a number that never changes."""

    def __init__(self, vocab_size: int) -> None:
        """Start with the mask that allows everything.

        Args:
            vocab_size: Rows of the model's output head.
        """
        self.vocab_size = vocab_size
        self.width = -(-vocab_size // 32)
        """int32 words a row."""
        self.rows: list[NDArray[np.int32]] = []
        """[num_masks] rows of [width]; read only."""
        self.num_legal: list[int] = []
        """[num_masks] tokens that each allows."""
        self._numbers: dict[bytes, int] = {}
        self._token_bytes: list[bytes] = []
        self._lock = Lock()  # grammars are compiled in threads beside the engine's own
        self.number(np.full(self.width, -1, dtype=np.int32))

    def number(self, row: NDArray[np.int32]) -> int:
        """The number of a mask, or ``UNNUMBERED`` if it is new and the table is full.

        Args:
            row: [width] bits in XGrammar's order; copied.
        """
        key = row.tobytes()
        with self._lock:
            if key not in self._numbers and len(self.rows) < MAX_MASKS:
                self._numbers[key] = len(self.rows)
                self.rows.append(np.frombuffer(key, dtype=np.int32))
                self.num_legal.append(count_legal(row, self.vocab_size))
            return self._numbers.get(key, UNNUMBERED)

    def token_bytes(self, compiled: Any) -> list[bytes]:
        """[V] bytes of each token, asked of a compiled grammar once: it takes most of a second."""
        with self._lock:
            if not self._token_bytes:
                self._token_bytes = compiled.tokenizer_info.decoded_vocab
            return self._token_bytes


def count_legal(row: NDArray[np.int32], vocab_size: int) -> int:
    """Tokens that a mask of [width] words allows; bits beyond the vocabulary mean nothing."""
    counts = np.bitwise_count(row.view(np.uint32))
    beyond = int(row.view(np.uint32)[-1]) >> (vocab_size % 32) if vocab_size % 32 else 0
    return int(counts.sum()) - beyond.bit_count()


class _Place:
    """A point that generations pass, known by the tokens that lead to it from the start."""

    __slots__ = ("following", "is_end", "mask", "path")

    def __init__(self, path: tuple[int, ...], mask: int, is_end: bool) -> None:
        self.path = path
        self.mask = mask
        self.is_end = is_end
        self.following: dict[int, _Place] = {}


class Memo:
    """What is known of one compiled grammar; all its generations share it."""

    def __init__(self, compiled: Any, text: FreeText, table: MaskTable) -> None:
        """Ask the matcher about free text.

        Args:
            compiled: XGrammar's compiled grammar of the tag.
            text: The tag's free text.
            table: Where masks are kept; must have room for two.
        """
        self._compiled = compiled
        self._scratch = np.empty((1, table.width), dtype=np.int32)
        self._num_places = 1
        self._token_bytes = table.token_bytes(compiled) if text.excluded else []
        self.text = text
        self.table = table
        self.start = _Place((), self._mask(self.matcher()), is_end=False)
        bits = np.unpackbits(table.rows[self.start.mask].view(np.uint8), bitorder="little")[: table.vocab_size]
        plain = text.plain(bits.astype(np.bool_), self._token_bytes)
        self.plain = plain.tobytes()
        """[V] 1 for each token of text that changes nothing but the count."""
        self.mask_after_text = self.start.mask
        """Number of the mask once the text is as long as it may be."""
        if text.limit and plain.any():
            self.mask_after_text = self._mask(self.matcher([int(plain.argmax())] * text.limit))

    def matcher(self, path: Sequence[int] = ()) -> Any:
        """A fresh matcher, led along ``path``."""
        import xgrammar

        matcher = xgrammar.GrammarMatcher(self._compiled)
        for token_id in path:
            matcher.accept_token(token_id)
        return matcher

    def _mask(self, matcher: Any) -> int:
        if matcher.is_terminated():
            return EVERYTHING
        matcher.fill_next_token_bitmask(self._scratch, 0)
        return self.table.number(self._scratch[0])

    def grow(self, place: _Place, token_id: int, matcher: Any) -> _Place | None:
        """Remember where ``token_id`` leads from ``place``; None: there is no room.

        Args:
            place: Where the token was sampled.
            token_id: A legal token, already accepted by the matcher.
            matcher: The matcher behind the token.
        """
        path = (*place.path, token_id)
        if len(path) > MAX_DEPTH or self._num_places >= MAX_PLACES:
            return None
        if self._is_back_in_text(path):
            place.following[token_id] = self.start
            return self.start
        mask = self._mask(matcher)
        if mask == UNNUMBERED:
            return None
        self._num_places += 1
        place.following[token_id] = _Place(path, mask, bool(matcher.is_terminated()))
        return place.following[token_id]

    def _is_back_in_text(self, path: tuple[int, ...]) -> bool:
        if not self.text.excluded or not self.text.call_begin_ids.isdisjoint(path):
            return False
        return self.text.is_settled(b"".join(self._token_bytes[token_id] for token_id in path))


class Walk:
    """One generation on its way through a grammar."""

    __slots__ = ("_matcher", "_memo", "_num_text", "_place", "is_complete", "mask")

    def __init__(self, memo: Memo) -> None:
        """Stand before the first token."""
        self._memo = memo
        self._place: _Place | None = memo.start
        self._num_text = 0
        self._matcher: Any = None
        """Stands where the walk stands; None: not needed so far, and to be led along the place's path."""
        self.mask = memo.start.mask
        """Number of the mask of what may come next, or ``UNNUMBERED``."""
        self.is_complete = False
        """The end of turn was accepted."""

    def accept(self, token_id: int) -> bool:
        """Step over one sampled id in [0, vocab_size); False (and no step) if the grammar forbids it."""
        memo = self._memo
        if self._place is not memo.start or not memo.plain[token_id]:
            return self._accept_beyond_text(token_id)
        limit = memo.text.limit
        if limit is not None:
            if self._num_text >= limit:
                return False
            self._num_text += 1
            if self._num_text == limit:
                self.mask = memo.mask_after_text
        return True

    def _accept_beyond_text(self, token_id: int) -> bool:
        place = self._place
        known = None if place is None else place.following.get(token_id)
        if known is not None:
            self._matcher = None
            self._stand(known)
            return True
        if self.is_complete:
            return False
        if self._matcher is None and place is not None:
            self._matcher = self._memo.matcher(place.path)
        if not self._matcher.accept_token(token_id):
            return False
        self._stand(None if place is None else self._memo.grow(place, token_id, self._matcher))
        return True

    def _stand(self, place: _Place | None) -> None:
        self._place = place
        if place is None:
            self.is_complete = bool(self._matcher.is_terminated())
            self.mask = EVERYTHING if self.is_complete else UNNUMBERED
            return
        if place is self._memo.start:
            self._matcher = None  # it has read text that the start has not
        self.is_complete = place.is_end
        self.mask = place.mask

    @property
    def num_legal(self) -> int:
        """Tokens that may come next; all of them once the end of turn was accepted."""
        table = self._memo.table
        if self.mask != UNNUMBERED:
            return table.num_legal[self.mask]
        scratch = np.empty((1, table.width), dtype=np.int32)
        self.fill(scratch, 0)
        return count_legal(scratch[0], table.vocab_size)

    def fill(self, bitmask: Any, row: int) -> None:
        """Write the mask into a row of ``bitmask``.

        Args:
            bitmask: [num_rows, width] int32, a NumPy array or a CPU tensor.
            row: Which.
        """
        if self.mask == UNNUMBERED:
            self._matcher.fill_next_token_bitmask(bitmask, row)
        else:
            np.asarray(bitmask)[row] = self._memo.table.rows[self.mask]


def fill_rows(walks: Sequence[Walk], bitmask: Any, rows: Sequence[int]) -> None:
    """Write the masks of several walks; what the matchers must be asked for is asked in threads of XGrammar's own.

    Args:
        walks: [N] generations.
        bitmask: [num_rows, width] int32, a NumPy array or a CPU tensor.
        rows: [N] each one's row.
    """
    asked = [index for index, walk in enumerate(walks) if walk.mask == UNNUMBERED]
    is_threaded = len(asked) >= _MIN_THREADED
    for walk, row in zip(walks, rows, strict=True):
        if walk.mask != UNNUMBERED or not is_threaded:
            walk.fill(bitmask, row)
    if is_threaded:
        matchers = [walks[index]._matcher for index in asked]
        _threads().batch_fill_next_token_bitmask(matchers, bitmask, [rows[index] for index in asked])


@cache
def _threads() -> Any:
    import xgrammar

    return xgrammar.BatchGrammarMatcher(max_threads=max(1, min(8, (os.cpu_count() or 1) // 2)))


def memo_of(structural_tag: str, compiled: Any, table: MaskTable) -> Memo | None:
    """A memo of a tag that ``grammar.tags`` wrote; None for any other tag, or when the table is full.

    Args:
        structural_tag: JSON of the tag.
        compiled: XGrammar's compiled grammar of it.
        table: Where masks are kept.
    """
    text = free_text(structural_tag)
    if text is None or len(table.rows) + 2 > MAX_MASKS:
        return None
    return Memo(compiled, text, table)
