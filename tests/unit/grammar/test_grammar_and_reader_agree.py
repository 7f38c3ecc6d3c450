"""The central promise: whatever can be sampled under the grammar is read as exactly one legal call."""

import random
from typing import Any

import numpy as np
import pytest
from grammar_tools import CODE, EXPLORE, LETTER, MIXED, NUMBER, SHORT, benchmark

from atlas_rl.grammar.arguments import schema_fault
from atlas_rl.grammar.compiled import CompiledStates, compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.reading import read_generation
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.records.vocabulary import EpisodeState, Finish, TerminalReason
from atlas_rl.tasks.benchmark import Benchmark

MAX_TOKENS = 300
NUM_WALKS = 60
BENCHMARKS = {
    "letter": benchmark(LETTER, text=0),
    "letter_after_text": benchmark(LETTER, text=None),
    "number": benchmark(NUMBER, text=30),
    "short": benchmark(SHORT, text=0),
    "letter_after_short_text": benchmark(LETTER, text=3),
    "code": benchmark(CODE, text=None, first=True),
    "mixed": benchmark(MIXED, text=10),
}


def walk(
    compiled: CompiledStates, state: EpisodeState, rng: random.Random, closers: list[int], hurry: float
) -> list[int]:
    """Random legal tokens; with probability ``hurry`` one that brings the end nearer, if any is legal."""
    matcher, ids = compiled.matcher(state), []
    while not matcher.is_complete and len(ids) < MAX_TOKENS:
        allowed = matcher.allowed()
        near = [token for token in closers if allowed[token]]
        ids.append(rng.choice(near) if near and rng.random() < hurry else int(rng.choice(np.flatnonzero(allowed))))
        assert matcher.accept(ids[-1])
    return ids


def closing_tokens(tokenizer: Any, tokens: ProtocolTokens) -> list[int]:
    """Call begin, and whatever starts with the quote that ends a string."""
    quotes = [i for text, i in sorted(tokenizer.get_vocab().items()) if text.startswith('"')]
    return [tokens.call_begin_id, *quotes]


def check_walks(
    spec: Benchmark, tokenizer: Any, tokens: ProtocolTokens, template: ChatTemplate, *, vocab_size: int, walks: int
) -> None:
    grammar = BenchmarkGrammar.from_benchmark(spec, tokens)
    compiled = compile_states(grammar, tokens, tokenizer, vocab_size=vocab_size)
    closers, rng, names = closing_tokens(tokenizer, tokens), random.Random(20), []
    for index in range(walks):
        state = rng.choice(list(EpisodeState))
        tools = grammar[state].tools
        ids = walk(compiled, state, rng, closers, hurry=(0.05, 0.2, 0.6)[index % 3])
        ended = ids[-1] == tokens.end_of_turn_id
        reading = read_generation(
            ids,
            tokens=tokens,
            tools=tools,
            decode=template.decode,
            finish=Finish.EOS if ended else Finish.LENGTH,
            turn_id=index,
        )
        if not ended and ids[-1] != tokens.call_end_id:
            assert reading.terminal is TerminalReason.LENGTH, (ids, reading)
            continue
        assert reading.terminal is None, (template.decode(ids), reading.call.reason)
        called = next(tool for tool in tools if tool.name == reading.call.name)
        assert schema_fault(reading.call.arguments, called.parameters, "arguments") == ""
        assert reading.call_end == len(ids) - ended
        assert [i for i in ids if i in tokens.control_ids][-3:] == [
            tokens.call_begin_id, tokens.call_end_id, *[tokens.end_of_turn_id] * ended,
        ]  # fmt: skip
        bound = grammar[state].max_generation_tokens
        assert bound is None or len(ids) <= bound
        assert spec.max_text_tokens is None or ids.index(tokens.call_begin_id) <= spec.max_text_tokens
        names.append(called.name)
    assert names.count("submit") >= walks // 20


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_random_walk_under_the_mask_is_read_as_one_legal_call(
    name: str, tokenizer: Any, tokens: ProtocolTokens, template: ChatTemplate
) -> None:
    check_walks(BENCHMARKS[name], tokenizer, tokens, template, vocab_size=448, walks=NUM_WALKS)


@pytest.mark.parametrize("name", ["letter", "letter_after_text", "letter_after_short_text", "code"])
def test_every_random_walk_with_the_real_qwen3_tokenizer_is_read_as_one_legal_call(name: str, qwen3: Any) -> None:
    tokens = ProtocolTokens.from_tokenizer(qwen3, extra_stop_ids=[151643])
    check_walks(BENCHMARKS[name], qwen3, tokens, ChatTemplate(qwen3, tokens), vocab_size=151936, walks=30)


def test_a_damaged_generation_that_the_grammar_refuses_never_crashes_the_reader(
    tokenizer: Any, tokens: ProtocolTokens, template: ChatTemplate
) -> None:
    grammar = BenchmarkGrammar.from_benchmark(BENCHMARKS["mixed"], tokens)
    compiled = compile_states(grammar, tokens, tokenizer, vocab_size=448)
    rng, closers, verdicts = random.Random(3), closing_tokens(tokenizer, tokens), set()
    # Control tokens are what a reader can be misled by: every third replacement is one.
    tokens_to_insert = [*range(len(tokenizer)), *tokens.control_ids * (len(tokenizer) // 18)]
    for turn in range(400):
        ids = walk(compiled, EpisodeState.OPEN, rng, closers, hurry=0.6)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(ids))
            ids[place : place + rng.randint(0, 2)] = rng.choices(tokens_to_insert, k=rng.randint(0, 2))
            ids = ids or [0]
        finish = Finish.EOS if ids[-1] in tokens.stop_ids else Finish.LENGTH
        reading = read_generation(
            ids, tokens=tokens, tools=(EXPLORE, MIXED), decode=template.decode, finish=finish, turn_id=turn
        )
        assert reading.call.valid == (reading.terminal is None) == (reading.call.reason == "")
        if compiled.accepts(EpisodeState.OPEN, ids):
            assert reading.terminal is None
        verdicts.add(reading.terminal)
    assert {TerminalReason.LENGTH, TerminalReason.INVALID_CALL, TerminalReason.MULTIPLE_CALLS} <= verdicts
