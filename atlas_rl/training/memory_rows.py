"""Synthetic rows of full length: random tokens that could have been sampled, in several turns. Nobody earned them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.replay import GrammarBook, find_forced
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import load_benchmark

MAX_OBSERVATION_TOKENS = 64
"""Between two generations: short, so that nearly every response token is sampled and goes through the head."""
_MAX_CALL_TOKENS = 64
"""Random arguments hardly ever end by themselves; a call this long is cut, as a length cap would cut it."""
_NUM_CALLS = 8
"""Different calls that the generations draw from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticRow:
    """One row. P prompt tokens, T response tokens."""

    prompt_ids: Sequence[int]
    """[P]"""
    response_ids: Sequence[int]
    """[T]"""
    generations: Sequence[tuple[int, int, str | None]]
    """Response offset, sampled tokens and grammar hash of each generation, in order."""
    forced_spans: Sequence[tuple[int, int]]
    """Half-open ranges of response tokens that had no legal alternative."""

    @property
    def response_mask(self) -> list[int]:
        """[T] 1 on sampled tokens."""
        mask = [0] * len(self.response_ids)
        for offset, num_sampled, _ in self.generations:
            mask[offset : offset + num_sampled] = [1] * num_sampled
        return mask


class RowMaker:
    """Draws rows of one benchmark on one tokenizer."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        benchmark_spec: str,
        max_turns: int,
        is_constrained: bool,
        max_text_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        """Find out which tokens text may be made of, and write some calls.

        Args:
            tokenizer: The run's.
            benchmark_spec: Whose grammar the generations keep.
            max_turns: Generations of a row, unless the grammar makes more of them necessary.
            is_constrained: False: any ordinary token anywhere, no calls.
            max_text_tokens: The run's bound on the text before a call; None: the benchmark's own.
            seed: Of every choice.
        """
        self._seed = seed
        self._max_turns = max_turns
        tokens = ProtocolTokens.from_tokenizer(tokenizer)
        self._ordinary = sorted(set(range(len(tokenizer))) - set(tokens.control_ids))
        self._turns: _LegalTurns | None = None
        if is_constrained:
            benchmark = load_benchmark(benchmark_spec)
            grammar = BenchmarkGrammar.from_benchmark(benchmark, tokens, max_text_tokens=max_text_tokens)
            state = grammar[EpisodeState.OPEN]
            book = GrammarBook(tokens, tokenizer, vocab_size=len(tokenizer))
            book.add([state])
            limit = benchmark.max_text_tokens if max_text_tokens is None else max_text_tokens
            self._turns = _LegalTurns(book, state.sha256, limit, self._ordinary, tokens.call_begin_id, seed)

    def row(self, name: str, prompt_tokens: int, response_tokens: int) -> SyntheticRow:
        """A row of exactly these lengths.

        Args:
            name: Rows of different names differ; the same name gives the same row.
            prompt_tokens: P.
            response_tokens: T.
        """
        rng = random.Random(f"memory check {self._seed} {name}")
        turns = self._turns
        response: list[int] = []
        generations: list[tuple[int, int, str | None]] = []
        forced: list[tuple[int, int]] = []
        turn_tokens = -(-response_tokens // self._max_turns)
        while len(response) < response_tokens:
            start, left = len(response), response_tokens - len(response)
            room = min(left, turn_tokens)
            sampled = rng.choices(self._ordinary, k=room) if turns is None else turns.generation(rng, room)
            if turns is not None:
                forced += [(start + first, start + end) for first, end in turns.forced(sampled)]
            generations.append((start, len(sampled), None if turns is None else turns.grammar_hash))
            num_observed = min(MAX_OBSERVATION_TOKENS, 1 + len(sampled) // 8, left - len(sampled))
            response += sampled + rng.choices(self._ordinary, k=num_observed)
        return SyntheticRow(
            prompt_ids=rng.choices(self._ordinary, k=prompt_tokens),
            response_ids=response,
            generations=generations,
            forced_spans=forced,
        )

    def prompt(self, name: str, num_tokens: int) -> list[int]:
        """[num_tokens] random ordinary ids; the same name gives the same."""
        return random.Random(f"memory check prompt {self._seed} {name}").choices(self._ordinary, k=num_tokens)


class _LegalTurns:
    """Generations under one grammar: random text as long as it may be, then one of a few random calls."""

    def __init__(
        self,
        book: GrammarBook,
        grammar_hash: str,
        max_text: int | None,
        ordinary: Sequence[int],
        call_begin_id: int,
        seed: int,
    ) -> None:
        self.grammar_hash = grammar_hash
        self._book = book
        self._max_text = max_text
        self._plain = [] if max_text == 0 else self._plain_text(ordinary)
        self._calls = [
            self._call(call_begin_id, random.Random(f"memory check call {seed} {place}")) for place in range(_NUM_CALLS)
        ]

    def generation(self, rng: random.Random, room: int) -> list[int]:
        """At most ``room`` ids, cut where it ends."""
        call = rng.choice(self._calls)
        num_text = max(room - len(call), 0)
        if self._max_text is not None:
            num_text = min(num_text, self._max_text)
        return (rng.choices(self._plain, k=num_text if self._plain else 0) + call)[:room]

    def forced(self, sampled: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Half-open ranges of the ids that had no alternative.

        Raises:
            GrammarError: an id is not legal; a bug here.
        """
        found = find_forced(self._book.walk(self.grammar_hash), sampled)
        if found.rejected_at is not None:
            raise GrammarError(
                f"memory check: synthetic id {sampled[found.rejected_at]} at {found.rejected_at} of a generation is "
                f"not legal under grammar {self.grammar_hash}; a bug in how synthetic rows are drawn"
            )
        return found.ranges

    def _plain_text(self, ordinary: Sequence[int]) -> list[int]:
        """Ids after which the same tokens are legal as before, so that any of them can follow any other."""
        start = self._book.walk(self.grammar_hash).mask
        plain = []
        for token_id in ordinary:
            walk = self._book.walk(self.grammar_hash)
            if walk.accept(token_id) and (walk.mask == start or self._max_text == 1):
                plain.append(token_id)
        return plain

    def _call(self, call_begin_id: int, rng: random.Random) -> list[int]:
        """A random call, cut after ``_MAX_CALL_TOKENS``; it is legal after any text."""
        walk = self._book.walk(self.grammar_hash)
        ids = [call_begin_id]
        walk.accept(call_begin_id)
        bits = np.empty((1, -(-self._book.vocab_size // 32)), dtype=np.int32)
        while not walk.is_complete and len(ids) < _MAX_CALL_TOKENS:
            walk.fill(bits, 0)
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: self._book.vocab_size]
            ids.append(int(rng.choice(np.flatnonzero(allowed))))
            walk.accept(ids[-1])
        return ids
