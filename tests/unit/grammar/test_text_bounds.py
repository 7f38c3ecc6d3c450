"""The bound on the text before a call, and the tighter ones that a reserve falls back to."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from grammar_tools import EXPLORE, LETTER, benchmark

from atlas_rl.grammar.compiled import CompiledStates, compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.reading import read_generation
from atlas_rl.grammar.tags import BenchmarkGrammar, state_grammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.records.vocabulary import EpisodeState, Finish
from atlas_rl.tasks.benchmark import load_benchmark

OPEN = EpisodeState.OPEN
VOCAB_SIZE = 448
EXPLORES = '<tool_call>\n{"name": "explore", "arguments": {}}\n</tool_call>'
SUBMITS = '<tool_call>\n{"name": "submit", "arguments": {"answer": "B"}}\n</tool_call>'
END = "<|im_end|>"


@pytest.fixture(scope="module")
def states(tokenizer: Any, tokens: ProtocolTokens) -> Callable[[int], CompiledStates]:
    """Compiled states of the toy benchmark with this text bound."""

    @cache
    def compiled(text: int) -> CompiledStates:
        grammar = BenchmarkGrammar.from_benchmark(benchmark(text=text), tokens)
        return compile_states(grammar, tokens, tokenizer, vocab_size=VOCAB_SIZE)

    return compiled


@pytest.mark.parametrize("bound", [1, 2, 3, 4, 5, 10, 21, 40])
def test_bounded_text_ends_at_its_bound_in_tokens_and_no_sooner(
    bound: int, states: Any, tokenizer: Any, tokens: ProtocolTokens
) -> None:
    # Ordinary tokens and think marks; so no control token and no id beyond the tokenizer.
    text = sorted(set(range(len(tokenizer))) - set(tokens.control_ids))
    matcher = states(bound).matcher(OPEN)
    for _ in range(bound):
        assert np.flatnonzero(matcher.allowed()).tolist() == sorted([*text, tokens.call_begin_id])
        assert matcher.accept(text[0])
    assert np.flatnonzero(matcher.allowed()).tolist() == [tokens.call_begin_id]


@pytest.mark.parametrize("num_tokens", range(12))
def test_a_call_may_follow_any_number_of_tokens_up_to_the_bound(
    num_tokens: int, states: Any, encode: Callable[[str], list[int]]
) -> None:
    text = encode("h") * num_tokens
    assert states(10).accepts(OPEN, text + encode(EXPLORES + END)) is (num_tokens <= 10)


def test_a_call_that_ordinary_tokens_spell_is_bounded_text(
    states: Any, tokenizer: Any, tokens: ProtocolTokens, template: ChatTemplate, encode: Callable[[str], list[int]]
) -> None:
    spelled = tokenizer.convert_tokens_to_ids(list("<tool_call>"))
    ids = spelled + encode(SUBMITS + END)
    assert states(40).accepts(OPEN, ids)
    reading = read_generation(
        ids, tokens=tokens, tools=(EXPLORE, LETTER), decode=template.decode, finish=Finish.EOS, turn_id=0
    )
    assert (reading.terminal, reading.call.arguments) == (None, {"answer": "B"})


def test_the_bound_holds_with_the_real_qwen3_tokenizer(qwen3: Any) -> None:
    tokens = ProtocolTokens.from_tokenizer(qwen3, extra_stop_ids=[151643])
    grammar = BenchmarkGrammar.from_benchmark(load_benchmark("gsm8k"), tokens)
    matcher = compile_states(grammar, tokens, qwen3, vocab_size=151936).matcher(OPEN)
    text = qwen3.encode("<think>if a < b, <tool_response is no mark</think> 数é. ", add_special_tokens=False)
    illegal = sorted({*tokens.control_ids, *range(len(qwen3), 151936)} - {tokens.call_begin_id})
    for index in range(128):
        assert np.flatnonzero(~matcher.allowed()).tolist() == illegal
        assert matcher.accept(text[index % len(text)])
    assert np.flatnonzero(matcher.allowed()).tolist() == [tokens.call_begin_id]


@pytest.mark.parametrize(
    ("bound", "rungs"),
    [
        (0, []),
        (1, [0]),
        (2, [1, 0]),
        (3, [2, 1, 0]),
        (8, [4, 2, 1, 0]),
        (128, [64, 32, 16, 8, 4, 2, 1, 0]),
        (129, [128, 64, 32, 16, 8, 4, 2, 1, 0]),
        (None, [16384, 8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 0]),
    ],
)
def test_the_rungs_are_the_powers_of_two_below_the_bound(
    bound: int | None, rungs: list[int], tokens: ProtocolTokens
) -> None:
    grammar = state_grammar([EXPLORE, LETTER], tokens, bound, state=OPEN)
    assert [rung.max_text_tokens for rung in grammar.rungs] == rungs
    for rung in grammar.rungs:
        alone = state_grammar([EXPLORE, LETTER], tokens, rung.max_text_tokens, state=OPEN)
        assert (rung.sha256, rung.rungs) == (alone.sha256, ())


@pytest.mark.parametrize("bound", [100, None])
def test_the_loosest_rung_whose_generations_fit_is_taken(bound: int | None, tokens: ProtocolTokens) -> None:
    grammar = state_grammar([EXPLORE, LETTER], tokens, bound, state=OPEN)
    call = grammar.max_call_tokens
    taken = {left: grammar.within(call + left).max_text_tokens for left in (-call, -1, 0, 1, 7, 8, 63, 64, 99, 100)}
    top = 100 if bound else 64
    assert taken == {-call: 0, -1: 0, 0: 0, 1: 1, 7: 4, 8: 8, 63: 32, 64: 64, 99: 64, 100: top}


def test_a_benchmark_names_its_grammars_and_their_rungs(tokens: ProtocolTokens) -> None:
    grammar = BenchmarkGrammar.from_benchmark(benchmark(text=2), tokens)
    assert list(grammar.by_name(rungs=False)) == ["first", "open", "exhausted"]
    assert list(grammar.by_name(rungs=True)) == [
        "first", "first/text_1", "first/text_0", "open", "open/text_1", "open/text_0",
        "exhausted", "exhausted/text_1", "exhausted/text_0",
    ]  # fmt: skip
    assert grammar.by_name(rungs=True)["open/text_0"].max_text_tokens == 0
    assert grammar.max_call_tokens == grammar[OPEN].max_call_tokens


def test_a_bound_on_the_text_takes_the_place_of_the_benchmarks_own(tokens: ProtocolTokens) -> None:
    for own in (None, 128):
        spec = benchmark(text=own)
        bounded = BenchmarkGrammar.from_benchmark(spec, tokens, max_text_tokens=5)
        assert [state.max_text_tokens for state in bounded.values()] == [5, 5, 5]
        assert BenchmarkGrammar.from_benchmark(spec, tokens)[OPEN].max_text_tokens == own


@pytest.mark.parametrize("bound", [4097, 5000])
def test_a_large_bound_is_written_in_halves_and_ends_where_it_should(
    bound: int, tokenizer: Any, tokens: ProtocolTokens
) -> None:
    grammar = state_grammar([LETTER], tokens, bound, state=OPEN)
    assert len(grammar.structural_tag) < 3000
    matcher = compile_states({OPEN: grammar}, tokens, tokenizer, vocab_size=VOCAB_SIZE).matcher(OPEN)
    for _ in range(bound):
        assert matcher.accept(65)
    assert np.flatnonzero(matcher.allowed()).tolist() == [tokens.call_begin_id]
