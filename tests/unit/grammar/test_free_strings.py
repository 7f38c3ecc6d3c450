"""A string bounded by maxLength: what it holds, where it ends, and that its masks admit nothing else."""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from grammar_tools import benchmark, tool
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizer import toy_tokenizer

from atlas_rl.grammar.arguments import schema_fault
from atlas_rl.grammar.compiled import CompiledStates, compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.schema import call_part
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import Tool

OPEN = EpisodeState.OPEN
OPENING = '<tool_call>\n{"name": "submit", "arguments": {"answer": "'
CLOSING = '"}}\n</tool_call><|im_end|>'
BLOCK, OVERFLOW = 32, 3
LENGTHS = [1, 2, 3, 4, 5, 9, 10, 33, 34, 64, 69, 70, 71, 104, 105, 106, 1200, 1300]


def text(most: int, least: int = 0) -> Tool:
    return tool("submit", answer={"type": "string", "minLength": least, "maxLength": most})


def num_blocks(most: int) -> int:
    return max(0, most - BLOCK - OVERFLOW) // (BLOCK + OVERFLOW)


@cache
def toy() -> tuple[Any, ProtocolTokens]:
    tokenizer = toy_tokenizer()
    return tokenizer, ProtocolTokens.from_tokenizer(tokenizer)


@cache
def strings(most: int, least: int = 0) -> CompiledStates:
    tokenizer, tokens = toy()
    grammar = BenchmarkGrammar.from_benchmark(benchmark(text(most, least)), tokens)
    return compile_states(grammar, tokens, tokenizer, vocab_size=448)


def accepts(body: str, most: int, least: int = 0) -> bool:
    """Whether a JSON string body, as it stands between the quotes, can be submitted."""
    tokenizer, _ = toy()
    plain = tokenizer.backend_tokenizer
    pieces = [piece for char in body for piece in byte_tokens(plain, char)]
    ids = tokenizer.encode(OPENING, add_special_tokens=False) + pieces
    return strings(most, least).accepts(OPEN, ids + tokenizer.encode(CLOSING, add_special_tokens=False))


@cache
def byte_tokens(backend: Any, char: str) -> tuple[int, ...]:
    """A character as single bytes, so that no tokenization hides what the count does."""
    marks = backend.pre_tokenizer.pre_tokenize_str(char)[0][0]
    return tuple(backend.token_to_id(mark) for mark in marks)


@pytest.mark.parametrize("most", LENGTHS)
def test_plain_characters_fit_up_to_the_length_less_three_a_block(most: int) -> None:
    fitting = most - OVERFLOW * num_blocks(most)
    lengths = range(most + 3) if most < 200 else [*range(0, most, 97), *range(fitting - 40, most + 3)]
    assert {length for length in lengths if accepts("a" * length, most)} == {n for n in lengths if n <= fitting}
    assert fitting >= 0.9 * most


@pytest.mark.parametrize("most", [1, 2, 40, 69, 70, 105, 200])
def test_a_minimum_of_one_shuts_out_the_empty_string_alone(most: int) -> None:
    lengths = range(most + 3)
    with_empty = {length for length in lengths if accepts("a" * length, most)}
    assert {length for length in lengths if accepts("a" * length, most, 1)} == with_empty - {0}


@pytest.mark.parametrize(
    ("unit", "cost"),
    [
        ("a", 1),
        ("é", 1),
        (r"\n", 1),
        (r"\"", 1),
        (r"\\", 1),
        ("数", 2),
        ("🙂", 2),
        (r"\u00e9", 3),
        ("< ", 2),
        ("<数", 3),
    ],
)
@pytest.mark.parametrize("most", [12, 34])
def test_a_short_string_counts_what_json_spells_long_twice_or_three_times(unit: str, cost: int, most: int) -> None:
    fitting = [count for count in range(most + 2) if accepts(unit * count, most)]
    assert fitting == list(range(most // cost + 1))


@pytest.mark.parametrize("unit", [r"\u00e9", "🙂", "< ", r"<\n", "<🙂", "<< ", "<<é", "<<🙂", r"<\/"])
def test_no_place_in_a_block_shuts_a_character_out(unit: str) -> None:
    most = 600
    for place in range(2 * BLOCK + 2):
        assert accepts("a" * place + unit + "a" * 300, most), place


@pytest.mark.parametrize(
    ("body", "accepted"),
    [
        (r"\n\t\"\\\/\b\f\r", True),
        (r"\u0001\u001F\u00e9\ud7ff\ue000\uFFFC\ufffe\uffff", True),
        ("\x7f\u2028é数🙂", True),
        ("a < b << c <= d \\u003ctool_call>", True),
        (r"<\/tool_call> <\n", True),
        (r"<\u0020", False),
        (r"\u0000", False),
        (r"\ud83d", False),
        (r"\ud83d\ude42", False),
        (r"\udfff", False),
        (r"\ufffd", False),
        (r"\uFFFD", False),
        (r"\x41", False),
        (r"\u12", False),
        ("\ufffd", False),
        ("\n", False),
        ("\t", False),
        ("\x00", False),
        ("<tool_call>", False),
        ("<t", False),
        ("<<|", False),
        ("</b>", False),
        ("b<", False),
    ],
)
@pytest.mark.parametrize("most", [60, 3000])
def test_a_string_holds_any_text_but_what_breaks_json_stores_or_the_protocol(
    body: str, accepted: bool, most: int
) -> None:
    assert accepts(body, most) is accepted
    if accepted:
        json.loads(f'"{body}"').encode()


UNITS = st.sampled_from(["a", " ", "0", "é", "数", "🙂", r"\n", r"\"", r"\u0007", "<", "=", "t", "/", "|", "e"])


@settings(max_examples=400, deadline=None)
@given(units=st.lists(UNITS, max_size=90), most=st.sampled_from([20, 40, 70, 75, 110, 150]))
def test_whatever_is_accepted_keeps_the_length_and_whatever_is_cheap_enough_is_accepted(
    units: list[str], most: int
) -> None:
    body = "".join(units)
    wide = sum(unit in "数🙂" for unit in units) + 2 * sum(unit == r"\u0007" for unit in units)
    is_legal = not any(pair in body for pair in ("<t", "</", "<|", r"<\u")) and not body.endswith("<")
    accepted = accepts(body, most)
    if accepted:
        value = json.loads(f'"{body}"')
        assert is_legal
        assert schema_fault({"answer": value}, text(most).parameters, "arguments") == ""
        assert len(body.encode()) <= 2 * most
    # Three openers in a row do not fit over the end of a block.
    if is_legal and "<<<" not in body and len(units) + wide <= most - OVERFLOW * num_blocks(most):
        assert accepted


class Probe:
    """A generation that can be asked what is legal, token by token, beside what its mask says."""

    def __init__(self, compiled: CompiledStates, ids: list[int]) -> None:
        import xgrammar

        self.matcher = compiled.matcher(OPEN)
        self._asked = xgrammar.GrammarMatcher(compiled.grammar(OPEN))
        for token_id in ids:
            self.step(token_id)

    def step(self, token_id: int) -> None:
        assert self.matcher.accept(token_id)
        assert self._asked.accept_token(token_id)

    def is_legal(self, token_id: int) -> bool:
        is_accepted = bool(self._asked.accept_token(token_id))
        if is_accepted:
            self._asked.rollback(1)
        return is_accepted

    def compare(self, texts: dict[int, str]) -> tuple[set[int], set[int]]:
        """What the mask admits and what is legal, of these ids; every character that is legal must be admitted."""
        allowed = set(np.flatnonzero(self.matcher.allowed()).tolist())
        legal = {token_id for token_id in texts if self.is_legal(token_id)}
        assert allowed & texts.keys() <= legal, [texts[one] for one in allowed & texts.keys() - legal]
        assert not [texts[one] for one in legal - allowed if len(texts[one]) == 1]
        return allowed & texts.keys(), legal


CODE_LINES = [
    r"if a << b and c <= d: x <<= 1  # <<<\n",
    *["x<=y, z<=0"] * 4,
    r"while i <= 3 and j <= 4:\n        return [i < 3 for i in 数学 if i >> 2]\n",
    r"                                                                    pass\n",
    r'\n\"\t\\ ."} ", "why": "数学é. ',
]


@cache
def code() -> tuple[Any, ProtocolTokens, dict[int, str]]:
    tokenizer = toy_tokenizer(corpus=[*CODE_LINES, OPENING, CLOSING])
    texts = {token_id: tokenizer.decode([token_id]) for token_id in range(len(tokenizer))}
    assert {" <", " <<", "<="} <= set(texts.values())
    return tokenizer, ProtocolTokens.from_tokenizer(tokenizer), texts


def code_strings(most: int) -> CompiledStates:
    tokenizer, tokens, _ = code()
    grammar = BenchmarkGrammar.from_benchmark(benchmark(text(most)), tokens)
    return compile_states(grammar, tokens, tokenizer, vocab_size=448)


@pytest.mark.parametrize("before", ["", "<", "<<", "\\", "数"])
@pytest.mark.parametrize("most", [1, 2, 5, 12, 40, 73, 106, 1300])
def test_at_every_place_of_a_string_the_mask_admits_only_what_is_legal(most: int, before: str) -> None:
    tokenizer, _, texts = code()
    compiled = code_strings(most)
    (a,) = tokenizer.encode("a")
    then = [i for char in before for i in byte_tokens(tokenizer.backend_tokenizer, char)]
    places = [*range(min(most, 72)), *range(max(72, most - OVERFLOW * num_blocks(most) - 70), most)]
    for place in places:
        try:
            probe = Probe(compiled, tokenizer.encode(OPENING, add_special_tokens=False) + [a] * place + then)
        except AssertionError:
            assert place + 3 * len(before) > most - OVERFLOW * num_blocks(most) - 3  # no room for them any more
            continue
        admitted, _ = probe.compare(texts)
        assert admitted, place


@pytest.mark.parametrize("seed", range(12))
def test_on_every_random_way_through_a_string_the_mask_admits_only_what_is_legal(seed: int) -> None:
    tokenizer, _, texts = code()
    rng = random.Random(seed)
    probe = Probe(code_strings(rng.choice([40, 100, 150, 400])), tokenizer.encode(OPENING, add_special_tokens=False))
    openings = [token_id for token_id, spelled in texts.items() if "<" in spelled]
    for _ in range(150):
        admitted, _ = probe.compare(texts)
        often = sorted(admitted & set(openings)) or sorted(admitted)
        probe.step(rng.choice(often if rng.random() < 0.3 else sorted(admitted)))
        if probe.matcher.is_complete:
            break


def test_far_from_the_end_of_a_string_the_mask_admits_all_that_is_legal() -> None:
    tokenizer, _, texts = code()
    ids = tokenizer.encode(OPENING + "So: ", add_special_tokens=False)
    admitted, legal = Probe(code_strings(3000), ids).compare(texts)
    assert {texts[one] for one in legal - admitted} <= {one for one in texts.values() if len(one) > 33 or "<<<" in one}
    assert len(legal) > 200


def test_far_from_the_end_the_real_qwen3_tokenizer_loses_only_its_longest_tokens(qwen3: Any) -> None:
    tokens = ProtocolTokens.from_tokenizer(qwen3)
    grammar = BenchmarkGrammar.from_benchmark(benchmark(text(16384)), tokens)
    compiled = compile_states(grammar, tokens, qwen3, vocab_size=151936)
    texts = {token_id: qwen3.decode([token_id]) for token_id in range(len(qwen3))}
    for prefix in ("So: ", "So <", "a" * 31, "a" * 31 + "<"):
        ids = qwen3.encode(OPENING, add_special_tokens=False) + qwen3.convert_tokens_to_ids(
            list(prefix.replace(" ", "Ġ"))
        )
        admitted, legal = Probe(compiled, ids).compare(texts)
        lost = [texts[one] for one in legal - admitted]
        odd = [one for one in lost if len(one) <= 16 and (prefix[-1:] + one).count("<") <= 2 and "\\u" not in one]
        assert odd == []
        assert len(lost) < 400 < 100_000 < len(legal)


def test_a_compiler_that_has_compiled_other_lengths_gives_the_same_masks(encode: Callable[[str], list[int]]) -> None:
    opening = encode(OPENING)
    for most in (12, 70, 3000):
        tokenizer, tokens = toy_tokenizer(), toy()[1]
        grammar = BenchmarkGrammar.from_benchmark(benchmark(text(most)), tokens)
        alone = compile_states(grammar, tokens, tokenizer, vocab_size=448).matcher(OPEN)
        shared = strings(most).matcher(OPEN)
        for token_id in [*opening, *encode("if a < b:") * 8]:
            assert np.array_equal(alone.allowed(), shared.allowed())
            if not alone.accept(token_id):
                break
            assert shared.accept(token_id)


@pytest.mark.parametrize(("most", "least"), [(1, 0), (8, 1), (16384, 0), (65536, 1)])
def test_the_longest_call_is_bounded_by_twice_the_length(most: int, least: int, tokens: ProtocolTokens) -> None:
    part = call_part(text(most, least), tokens)
    frame = len('\n{"name": "submit", "arguments": {"answer": ""}}\n')
    assert part.max_bytes == frame + 2 * most
    assert len(part.shortest) == frame + least
    assert sum(len(str(element)) for element in part.formats) < 25_000


def test_strings_may_stand_beside_each_other_in_one_call(encode: Callable[[str], list[int]]) -> None:
    tokenizer, tokens = toy()
    two = tool(
        "submit", answer={"type": "string", "maxLength": 90}, why={"type": "string", "minLength": 1, "maxLength": 40}
    )
    grammar = BenchmarkGrammar.from_benchmark(benchmark(two), tokens)
    compiled = compile_states(grammar, tokens, tokenizer, vocab_size=448)
    call = '<tool_call>\n{"name": "submit", "arguments": {"answer": "%s", "why": "%s"}}\n</tool_call><|im_end|>'
    assert compiled.accepts(OPEN, encode(call % ("a < b, c", "so")))
    assert compiled.accepts(OPEN, encode(call % ("", "so")))
    assert not compiled.accepts(OPEN, encode(call % ("a", "")))
    assert not compiled.accepts(OPEN, encode(call % ("a" * 91, "so")))
    assert not compiled.accepts(OPEN, encode(call % ("a", "s" * 41)))
