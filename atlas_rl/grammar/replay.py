"""Sampled ids through their grammar once more: what each token could have been, and which had no alternative."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.compiled import Matcher, compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import StateGrammar


class GrammarBook:
    """Grammars by the hash that records name them with, each compiled when it is first needed."""

    def __init__(self, tokens: ProtocolTokens, tokenizer: Any, *, vocab_size: int) -> None:
        """Hold no grammar yet.

        Args:
            tokens: The tokenizer's protocol tokens.
            tokenizer: Hugging Face fast tokenizer.
            vocab_size: Rows of the model's output head.
        """
        self.vocab_size = vocab_size
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._grammars: dict[str, StateGrammar] = {}
        self._start: dict[str, Callable[[], Matcher]] = {}

    def add(self, grammars: Sequence[StateGrammar]) -> None:
        """Make grammars known; one that is known already changes nothing."""
        self._grammars.update({grammar.sha256: grammar for grammar in grammars})

    def matcher(self, grammar_hash: str) -> Matcher:
        """A fresh matcher for one generation.

        Raises:
            GrammarError: no grammar has this hash, or XGrammar refuses its tag.
        """
        if grammar_hash not in self._start:
            if grammar_hash not in self._grammars:
                raise GrammarError(
                    f"grammar {grammar_hash} is none of this benchmark's on this tokenizer; the record was sampled "
                    "under another benchmark file or tokenizer"
                )
            grammar = self._grammars[grammar_hash]
            compiled = compile_states(
                {grammar.state: grammar}, self._tokens, self._tokenizer, vocab_size=self.vocab_size
            )
            self._start[grammar_hash] = lambda: compiled.matcher(grammar.state)
        return self._start[grammar_hash]()


@dataclass(frozen=True, slots=True)
class Forced:
    """Which tokens of one generation had no alternative."""

    ranges: tuple[tuple[int, int], ...]
    """Half-open ranges of places among the sampled ids, ascending, not touching each other."""
    rejected_at: int | None
    """Place of the first id that the grammar forbids; nothing after it is looked at. None: all are legal."""


def find_forced(matcher: Matcher, token_ids: Sequence[int], call_begin_id: int) -> Forced:
    """Replay a generation and find the ids that were the only legal ones.

    Before the call begins nothing is forced: where text may go on, a call may begin too, and where it may not, the
    call's own begin is looked at.

    Args:
        matcher: A fresh one of the generation's grammar.
        token_ids: [N] sampled ids, the end of turn included if it was sampled.
        call_begin_id: The token that opens a call.
    """
    ranges: list[tuple[int, int]] = []
    in_call = False
    for place, token_id in enumerate(token_ids):
        in_call = in_call or token_id == call_begin_id
        is_forced = in_call and _count(matcher.legal_words()) == 1
        if not matcher.accept(token_id):
            return Forced(tuple(ranges), rejected_at=place)
        if is_forced and ranges and ranges[-1][1] == place:
            ranges[-1] = (ranges[-1][0], place + 1)
        elif is_forced:
            ranges.append((place, place + 1))
    return Forced(tuple(ranges), rejected_at=None)


FORCED = -1
"""In place of a legal set's place in the table: the token was the only legal one."""


class LegalSetTable:
    """Distinct legal sets in the order of first sight, each kept once."""

    def __init__(self, vocab_size: int) -> None:
        """Hold none.

        Args:
            vocab_size: Tokens that a set is about.
        """
        self._num_words = (vocab_size + 31) // 32
        self._places: dict[bytes, int] = {}
        self._sets: list[NDArray[np.int32]] = []

    def __len__(self) -> int:
        """Distinct sets of two tokens or more."""
        return len(self._sets)

    def words(self, first: int = 0) -> NDArray[np.int32]:
        """[D - first, W] the sets from place ``first`` on; bit v % 32 of word v // 32 is token v's."""
        if first == len(self._sets):
            return np.zeros((0, self._num_words), dtype=np.int32)
        return np.stack(self._sets[first:])

    def replay(self, matcher: Matcher, token_ids: Sequence[int], *, offset: int = 0) -> NDArray[np.int32]:
        """[N] place of each token's legal set, ``FORCED`` where it holds that token alone.

        Args:
            matcher: A fresh one of the generation's grammar.
            token_ids: [N] sampled ids.
            offset: Where they start in the response, for messages.

        Raises:
            GrammarError: the grammar forbids an id; the message says which.
        """
        places = np.empty(len(token_ids), dtype=np.int32)
        last: NDArray[np.int32] | None = None
        last_place = FORCED
        for place, token_id in enumerate(token_ids):
            words = matcher.legal_words()
            # In free text one set follows the other unchanged; comparing is cheaper than hashing.
            if last is None or not np.array_equal(words, last):
                last_place = self._place(words)
                last = words.copy()
            places[place] = last_place
            if not matcher.accept(token_id):
                raise GrammarError(f"token {token_id} at response offset {offset + place} is not legal there")
        return places

    def _place(self, words: NDArray[np.int32]) -> int:
        if _count(words) == 1:
            return FORCED
        key = words.tobytes()
        if key not in self._places:
            self._places[key] = len(self._sets)
            self._sets.append(words.copy())
        return self._places[key]


def _count(words: NDArray[np.int32]) -> int:
    return int(np.bitwise_count(words.view(np.uint32)).sum())
