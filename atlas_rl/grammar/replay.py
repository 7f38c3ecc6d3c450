"""Sampled ids through their grammar once more: what each token could have been, and which had no alternative."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.compiled import compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import StateGrammar
from atlas_rl.grammar.walk import UNNUMBERED, MaskTable, Memo, Walk, memo_of


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
        self._masks = MaskTable(vocab_size)
        self._memos: dict[str, Memo] = {}

    def add(self, grammars: Sequence[StateGrammar]) -> None:
        """Make grammars known; one that is known already changes nothing."""
        self._grammars.update({grammar.sha256: grammar for grammar in grammars})

    def walk(self, grammar_hash: str) -> Walk:
        """One generation before its first token.

        Raises:
            GrammarError: no grammar has this hash, or XGrammar refuses its tag.
        """
        if grammar_hash not in self._memos:
            if grammar_hash not in self._grammars:
                raise GrammarError(
                    f"grammar {grammar_hash} is none of this benchmark's on this tokenizer; the record was sampled "
                    "under another benchmark file or tokenizer"
                )
            self._memos[grammar_hash] = self._memo(self._grammars[grammar_hash])
        return Walk(self._memos[grammar_hash])

    def _memo(self, grammar: StateGrammar) -> Memo:
        compiled = compile_states({grammar.state: grammar}, self._tokens, self._tokenizer, vocab_size=self.vocab_size)
        memo = memo_of(grammar.structural_tag, compiled.grammar(grammar.state), self._masks)
        if memo is None:  # the table of masks is full: begin another, known numbers stay with the walks that hold them
            self._masks = MaskTable(self.vocab_size)
            memo = memo_of(grammar.structural_tag, compiled.grammar(grammar.state), self._masks)
        if memo is None:
            raise GrammarError(
                f"the tag of state {grammar.state} is not one that atlas_rl writes; it cannot be replayed"
            )
        return memo


@dataclass(frozen=True, slots=True)
class Forced:
    """Which tokens of one generation had no alternative."""

    ranges: tuple[tuple[int, int], ...]
    """Half-open ranges of places among the sampled ids, ascending, not touching each other."""
    rejected_at: int | None
    """Place of the first id that the grammar forbids; nothing after it is looked at. None: all are legal."""


def find_forced(walk: Walk, token_ids: Sequence[int]) -> Forced:
    """Replay a generation and find the ids that were the only legal ones.

    Args:
        walk: One of the generation's grammar, before its first token.
        token_ids: [N] sampled ids, the end of turn included if it was sampled.
    """
    ranges: list[tuple[int, int]] = []
    for place, token_id in enumerate(token_ids):
        is_forced = walk.num_legal == 1
        if not walk.accept(token_id):
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
        self._scratch = np.zeros((1, self._num_words), dtype=np.int32)

    def __len__(self) -> int:
        """Distinct sets of two tokens or more."""
        return len(self._sets)

    def words(self, first: int = 0) -> NDArray[np.int32]:
        """[D - first, W] the sets from place ``first`` on; bit v % 32 of word v // 32 is token v's.

        Bits beyond the vocabulary mean nothing.
        """
        if first == len(self._sets):
            return np.zeros((0, self._num_words), dtype=np.int32)
        return np.stack(self._sets[first:])

    def replay(self, walk: Walk, token_ids: Sequence[int], *, offset: int = 0) -> NDArray[np.int32]:
        """[N] place of each token's legal set, ``FORCED`` where it holds that token alone.

        Args:
            walk: One of the generation's grammar, before its first token.
            token_ids: [N] sampled ids.
            offset: Where they start in the response, for messages.

        Raises:
            GrammarError: the grammar forbids an id; the message says which.
        """
        places = np.empty(len(token_ids), dtype=np.int32)
        last, last_place = UNNUMBERED, FORCED
        for place, token_id in enumerate(token_ids):
            if walk.mask == UNNUMBERED or walk.mask != last:
                walk.fill(self._scratch, 0)
                last, last_place = walk.mask, FORCED if walk.num_legal == 1 else self._place(self._scratch[0])
            places[place] = last_place
            if not walk.accept(token_id):
                raise GrammarError(f"token {token_id} at response offset {offset + place} is not legal there")
        return places

    def _place(self, words: NDArray[np.int32]) -> int:
        key = words.tobytes()
        if key not in self._places:
            self._places[key] = len(self._sets)
            self._sets.append(words.copy())
        return self._places[key]
