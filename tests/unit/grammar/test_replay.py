"""Replaying sampled ids: legal sets, forced tokens, and ids that no grammar allows."""

import random
from typing import Any

import numpy as np
import pytest
from grammar_tools import LETTER, NUMBER, SHORT, benchmark

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.compiled import compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.replay import FORCED, GrammarBook, LegalSetTable, find_forced
from atlas_rl.grammar.tags import BenchmarkGrammar, StateGrammar
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import Tool

ODD_VOCAB = 413  # no multiple of 32, and larger than the tokenizer


def a_book(tokenizer: Any, tokens: ProtocolTokens, submit: Tool, text: int | None) -> tuple[GrammarBook, StateGrammar]:
    grammar = BenchmarkGrammar.from_benchmark(benchmark(submit, text=text), tokens)
    book = GrammarBook(tokens, tokenizer, vocab_size=ODD_VOCAB)
    book.add(list(grammar.values()))
    return book, grammar[EpisodeState.OPEN]


def drawn(
    tokenizer: Any, tokens: ProtocolTokens, state: StateGrammar, rng: random.Random
) -> tuple[list[int], list[list[int]]]:
    """Random legal ids, and what was legal at each place, asked of the matcher."""
    compiled = compile_states({state.state: state}, tokens, tokenizer, vocab_size=ODD_VOCAB)
    matcher = compiled.matcher(state.state)
    ids: list[int] = []
    legal: list[list[int]] = []
    while not matcher.is_complete and len(ids) < 60:
        allowed = np.flatnonzero(matcher.allowed()).tolist()
        ids.append(rng.choice(allowed))
        legal.append(allowed)
        assert matcher.accept(ids[-1])
    return ids, legal


@pytest.mark.parametrize("submit", [LETTER, NUMBER, SHORT], ids=["enum", "pattern", "string"])
@pytest.mark.parametrize("text", [0, 3, None])
def test_forced_tokens_are_those_with_one_legal_id(
    tokenizer: Any, tokens: ProtocolTokens, submit: Tool, text: int | None
):
    book, state = a_book(tokenizer, tokens, submit, text)
    table = LegalSetTable(ODD_VOCAB)
    num_forced = 0
    for seed in range(30):
        ids, legal = drawn(tokenizer, tokens, state, random.Random(seed))
        alone = [len(allowed) == 1 for allowed in legal]
        forced = find_forced(book.walk(state.sha256), ids)
        assert forced.rejected_at is None
        marked = [any(start <= place < end for start, end in forced.ranges) for place in range(len(ids))]
        assert marked == alone
        places = table.replay(book.walk(state.sha256), ids)
        assert (places == FORCED).tolist() == alone
        words = table.words()
        for place, allowed in zip(places, legal, strict=True):
            if place != FORCED:
                bits = np.unpackbits(words[place].view(np.uint8), bitorder="little")[:ODD_VOCAB]
                assert np.flatnonzero(bits).tolist() == allowed
        num_forced += sum(alone)
    assert num_forced > 0
    assert len({row.tobytes() for row in table.words()}) == len(table) == len(table.words())
    assert len(table.words(len(table) - 1)) == 1
    assert table.words(len(table)).shape == (0, table.words().shape[1])


def test_an_illegal_id_is_named_where_it_stands(tokenizer: Any, tokens: ProtocolTokens):
    book, state = a_book(tokenizer, tokens, LETTER, 3)
    ids, _ = drawn(tokenizer, tokens, state, random.Random(0))
    broken = [*ids[:-1], tokens.call_end_id]
    forced = find_forced(book.walk(state.sha256), broken)
    assert forced.rejected_at == len(ids) - 1
    with pytest.raises(GrammarError, match=rf"token {tokens.call_end_id} at response offset {40 + len(ids) - 1} "):
        LegalSetTable(ODD_VOCAB).replay(book.walk(state.sha256), broken, offset=40)


def test_nothing_is_legal_after_the_end_of_turn(tokenizer: Any, tokens: ProtocolTokens):
    book, state = a_book(tokenizer, tokens, LETTER, 0)
    ids, _ = drawn(tokenizer, tokens, state, random.Random(0))
    assert find_forced(book.walk(state.sha256), [*ids, ids[-1]]).rejected_at == len(ids)


def test_a_generation_that_was_cut_is_replayed_as_far_as_it_goes(tokenizer: Any, tokens: ProtocolTokens):
    book, state = a_book(tokenizer, tokens, LETTER, 0)
    ids, _ = drawn(tokenizer, tokens, state, random.Random(0))
    whole = find_forced(book.walk(state.sha256), ids)
    for length in range(len(ids)):
        cut = find_forced(book.walk(state.sha256), ids[:length])
        assert cut.rejected_at is None
        inside = [(start, min(end, length)) for start, end in whole.ranges if start < length]
        assert list(cut.ranges) == inside


def test_a_grammar_of_another_benchmark_is_refused(tokenizer: Any, tokens: ProtocolTokens):
    book, _ = a_book(tokenizer, tokens, LETTER, 0)
    _, other = a_book(tokenizer, tokens, NUMBER, 0)
    with pytest.raises(GrammarError, match=f"grammar {other.sha256} is none of this benchmark's"):
        book.walk(other.sha256)
