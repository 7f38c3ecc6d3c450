"""A walk answers as XGrammar's matcher does, bit for bit, whether it remembers or asks."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from grammar_tools import CODE, LETTER, MIXED, NUMBER, SHORT, benchmark
from numpy.typing import NDArray

from atlas_rl.grammar import walk as walk_module
from atlas_rl.grammar.free_text import free_text
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.grammar.walk import EVERYTHING, UNNUMBERED, MaskTable, Memo, Walk, memo_of
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import BENCHMARKS as FOLDER
from atlas_rl.tasks.benchmark import Benchmark, load_benchmark

VOCAB_SIZE = 512
BENCHMARKS = {
    "letter": benchmark(LETTER, text=0),
    "letter_after_text": benchmark(LETTER, text=None),
    "number": benchmark(NUMBER, text=30),
    "short": benchmark(SHORT, text=1),
    "code_after_text": benchmark(CODE, text=None, first=True),
    "code": benchmark(CODE, text=7),
    "mixed": benchmark(MIXED, text=10),
}


def compiled_tag(tag: str, tokenizer: Any, tokens: ProtocolTokens, vocab_size: int) -> Any:
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=vocab_size, stop_token_ids=[tokens.end_of_turn_id]
    )
    return xgrammar.GrammarCompiler(info).compile_structural_tag(tag)


def bits(words: NDArray[np.int32]) -> NDArray[np.intp]:
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


class Pair:
    """One generation, once through a walk and once through a matcher of its own."""

    def __init__(self, memo: Memo) -> None:
        self.walk, self.matcher = Walk(memo), memo.matcher()
        self.mine = np.zeros((1, memo.table.width), dtype=np.int32)
        self.theirs = np.zeros((1, memo.table.width), dtype=np.int32)

    def legal(self) -> NDArray[np.intp]:
        self.walk.fill(self.mine, 0)
        self.matcher.fill_next_token_bitmask(self.theirs, 0)
        assert np.array_equal(self.mine, self.theirs)
        return bits(self.theirs[0])

    def step(self, token_id: int) -> bool:
        is_legal = self.walk.accept(token_id)
        assert is_legal == self.matcher.accept_token(token_id)
        assert self.walk.is_complete == self.matcher.is_terminated()
        return is_legal

    def would_accept(self, token_id: int) -> bool:
        """A bounded string would take long tokens that its masks leave out."""
        is_accepted = bool(self.matcher.accept_token(token_id))
        if is_accepted:
            self.matcher.rollback(1)
        return is_accepted


def run_pair(memo: Memo, rng: random.Random, closers: Sequence[int], *, hurry: float, most: int = 200) -> int:
    pair, steps = Pair(memo), 0
    while not pair.walk.is_complete and steps < most:
        legal = pair.legal()
        refused = rng.randrange(VOCAB_SIZE)
        if refused not in legal and not pair.would_accept(refused):
            assert not pair.step(refused)
            assert np.array_equal(pair.legal(), legal)
        near = [token for token in closers if token in legal]
        assert pair.step(rng.choice(near) if near and rng.random() < hurry else int(rng.choice(legal)))
        steps += 1
    return steps


def check(spec: Benchmark, tokenizer: Any, tokens: ProtocolTokens, num_walks: int) -> MaskTable:
    table, rng = MaskTable(VOCAB_SIZE), random.Random(5)
    memos = []
    for grammar in BenchmarkGrammar.from_benchmark(spec, tokens).values():
        tag = grammar.structural_tag
        memos.append(memo_of(tag, compiled_tag(tag, tokenizer, tokens, VOCAB_SIZE), table))
    quotes = [i for text, i in sorted(tokenizer.get_vocab().items()) if text.startswith('"')]
    for index in range(num_walks):
        memo = memos[index % len(memos)]
        assert memo is not None
        run_pair(memo, rng, [tokens.call_begin_id, *quotes], hurry=(0.02, 0.2, 0.7)[index // 3 % 3])
    return table


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_mask_and_every_verdict_is_the_matchers(name: str, tokenizer: Any, tokens: ProtocolTokens) -> None:
    table = check(BENCHMARKS[name], tokenizer, tokens, 45)
    assert len(table.rows) > 3


@pytest.mark.parametrize(("limit", "value"), [("MAX_PLACES", 6), ("MAX_DEPTH", 3), ("MAX_MASKS", 12)])
@pytest.mark.parametrize("name", ["code_after_text", "code", "mixed"])
def test_so_they_are_when_memory_runs_out(
    name: str, limit: str, value: int, tokenizer: Any, tokens: ProtocolTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_module, limit, value)
    table = check(BENCHMARKS[name], tokenizer, tokens, 20)
    assert len(table.rows) <= 12 or limit != "MAX_MASKS"


def memo_for(spec: Benchmark, tokenizer: Any, tokens: ProtocolTokens) -> Memo:
    tag = BenchmarkGrammar.from_benchmark(spec, tokens)[EpisodeState.OPEN].structural_tag
    memo = memo_of(tag, compiled_tag(tag, tokenizer, tokens, VOCAB_SIZE), MaskTable(VOCAB_SIZE))
    assert memo is not None
    return memo


def test_text_up_to_its_limit_needs_no_matcher(tokenizer: Any, tokens: ProtocolTokens) -> None:
    memo = memo_for(benchmark(LETTER, text=40), tokenizer, tokens)
    text = tokenizer.encode("<tool_response is no mark here, 数é. " * 8, add_special_tokens=False)[:40]
    pair = Pair(memo)
    masks = []
    for token_id in text:
        masks.append(pair.walk.mask)
        pair.legal()
        assert pair.step(token_id)
    assert len(text) == 40
    assert masks == [memo.start.mask] * 40
    assert pair.walk.mask == memo.mask_after_text
    assert pair.legal().tolist() == [tokens.call_begin_id]
    assert not pair.step(text[0])
    assert len(memo.start.following) == 0


def test_unbounded_text_comes_back_to_where_it_was_once_no_mark_is_begun(
    tokenizer: Any, tokens: ProtocolTokens
) -> None:
    memo = memo_for(benchmark(LETTER, text=None), tokenizer, tokens)
    less, word = tokenizer.convert_tokens_to_ids(["<", "a"])
    first, second = "é".encode()
    pieces = {value: key for key, value in enumerate(memo._token_bytes)}
    pair = Pair(memo)
    is_back = []
    for token_id in [word, less, word, less, less, word, pieces[bytes([first])], pieces[bytes([second])], word]:
        pair.legal()
        assert pair.step(token_id)
        is_back.append(pair.walk._place is memo.start)
    #                  a     <      a     <      <      a     half é  é     a
    assert is_back == [True, False, True, False, False, True, False, True, True]


def test_two_generations_of_the_same_call_ask_the_matcher_once(tokenizer: Any, tokens: ProtocolTokens) -> None:
    memo = memo_for(benchmark(LETTER, text=0), tokenizer, tokens)
    shortest = BenchmarkGrammar.from_benchmark(benchmark(LETTER, text=0), tokens)[EpisodeState.OPEN].shortest_calls[0]
    call = tokenizer.encode(shortest, add_special_tokens=False)
    ids = [tokens.call_begin_id, *call, tokens.call_end_id, tokens.end_of_turn_id]
    first, second = Walk(memo), Walk(memo)
    assert all(first.accept(token_id) for token_id in ids)
    assert all(second.accept(token_id) for token_id in ids)
    assert second._matcher is None
    assert (first.is_complete, second.is_complete, second.mask) == (True, True, EVERYTHING)
    assert not second.accept(ids[0])


def test_a_long_string_leaves_the_memory_and_is_filled_by_the_matcher(tokenizer: Any, tokens: ProtocolTokens) -> None:
    memo = memo_for(benchmark(CODE, text=0), tokenizer, tokens)
    opening = tokenizer.encode('\n{"name": "submit", "arguments": {"answer": "', add_special_tokens=False)
    letters = tokenizer.convert_tokens_to_ids(list("abcdefghij")) * 10
    pair = Pair(memo)
    assert all(pair.step(token_id) for token_id in [tokens.call_begin_id, *opening, *letters])
    pair.legal()
    assert pair.walk.mask == UNNUMBERED
    assert all(len(place.path) <= walk_module.MAX_DEPTH for place in memo.start.following.values())


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.yaml")))
def test_the_free_text_of_every_benchmark_is_understood(name: str, tokens: ProtocolTokens) -> None:
    spec = load_benchmark(name)
    for state, grammar in BenchmarkGrammar.from_benchmark(spec, tokens).items():
        text = free_text(grammar.structural_tag)
        assert text is not None, f"{name}, {state}: grammar.tags writes free text in a form that free_text cannot read"
        assert text.limit == grammar.max_text_tokens
        assert text.call_begin_ids == {tokens.call_begin_id}


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 5, 31, 32, 33, 100, 1000, None])
def test_every_limit_is_read_back(limit: int | None, tokens: ProtocolTokens) -> None:
    for grammar in BenchmarkGrammar.from_benchmark(benchmark(LETTER, text=limit), tokens).values():
        text = free_text(grammar.structural_tag)
        assert text is not None
        assert text.limit == limit


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"any_text"}',
        '{"type":"regex","pattern":"[^<]{0,9}"}',
        '{"type":"grammar","grammar":"root ::= any any\\nany ::= ExcludeToken(1, 2)\\n"}',
        '{"type":"grammar","grammar":"root ::= (\\"\\" | any any)\\nany ::= ExcludeToken(1, 2)\\n"}',
        '{"type":"grammar","grammar":"root ::= (\\"\\" | any) \\"a\\"\\nany ::= ExcludeToken(1, 2)\\n"}',
        '{"type":"grammar","grammar":"root ::= (\\"\\" | any)\\nany ::= ExcludeToken(2)\\n"}',
    ],
    ids=["no_excludes", "regex", "no_choice", "no_single_token", "more_than_runs", "call_begin_is_text"],
)
def test_text_of_any_other_form_is_left_to_the_matcher(text: str) -> None:
    call = (
        '{"type":"tag","begin":{"type":"token","token":1},'
        '"content":{"type":"const_string","value":"x"},"end":{"type":"token","token":2}}'
    )
    good = '{"type":"grammar","grammar":"root ::= (\\"\\" | any)\\nany ::= ExcludeToken(1, 2)\\n"}'
    form = '{"type":"structural_tag","format":{"type":"sequence","elements":[%s,%s]}}'
    assert free_text(form % (good, call)) is not None
    assert free_text(form % (text, call)) is None
    assert free_text(" " + form % (good, call)) is None


def test_masks_hold_with_the_real_qwen3_tokenizer(qwen3: Any) -> None:
    tokens = ProtocolTokens.from_tokenizer(qwen3)
    tag = BenchmarkGrammar.from_benchmark(load_benchmark("gsm8k"), tokens)[EpisodeState.OPEN].structural_tag
    memo = memo_of(tag, compiled_tag(tag, qwen3, tokens, 151936), MaskTable(151936))
    assert memo is not None
    rng = random.Random(3)
    lengths = [run_pair(memo, rng, [tokens.call_begin_id], hurry=hurry) for hurry in (0.0, 0.01, 0.05, 0.5, 0.5)]
    assert max(lengths) > 128
