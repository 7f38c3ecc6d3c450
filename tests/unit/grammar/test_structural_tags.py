import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from grammar_tools import CODE, EXPLORE, LETTER, MIXED, NUMBER, SHORT, benchmark, tool
from toy_tokenizer import MARKS, toy_tokenizer

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.compiled import CompiledStates, compile_states, verify_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import BenchmarkGrammar, state_grammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import Benchmark, Tool, load_benchmark

FIRST, OPEN, EXHAUSTED = EpisodeState
VOCAB_SIZE = 448
EXPLORES = '<tool_call>\n{"name": "explore", "arguments": {}}\n</tool_call>'
SUBMITS = '<tool_call>\n{"name": "submit", "arguments": {"answer": "B"}}\n</tool_call>'
END = "<|im_end|>"


def submits(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "submit", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture(scope="module")
def states(tokenizer: Any, tokens: ProtocolTokens) -> Callable[..., CompiledStates]:
    """Compiled states of a benchmark with this submit and text bound."""

    @cache
    def compiled(submit_index: int, text: int | None) -> CompiledStates:
        grammar = BenchmarkGrammar.from_benchmark(benchmark(SUBMIT_TOOLS[submit_index], text=text), tokens)
        return compile_states(grammar, tokens, tokenizer, vocab_size=VOCAB_SIZE)

    return lambda submit, text=None: compiled(SUBMIT_TOOLS.index(submit), text)


SUBMIT_TOOLS = [LETTER, NUMBER, CODE, SHORT, MIXED]


def test_the_tag_of_a_state_without_text_is_one_choice_of_calls_framed_by_ids(tokens: ProtocolTokens) -> None:
    grammar = state_grammar([EXPLORE, LETTER], tokens, 0, state=OPEN)
    begin = {"type": "token", "token": tokens.call_begin_id}
    end = {"type": "token", "token": tokens.call_end_id}
    letters = [{"type": "const_string", "value": f'"{letter}"'} for letter in "ABCD"]
    submit = [
        {"type": "const_string", "value": '\n{"name": "submit", "arguments": {"answer": '},
        {"type": "or", "elements": letters},
        {"type": "const_string", "value": "}}\n"},
    ]
    explore = {"type": "const_string", "value": '\n{"name": "explore", "arguments": {}}\n'}
    assert json.loads(grammar.structural_tag) == {
        "type": "structural_tag",
        "format": {
            "type": "or",
            "elements": [
                {"type": "tag", "begin": begin, "content": explore, "end": end},
                {"type": "tag", "begin": begin, "content": {"type": "sequence", "elements": submit}, "end": end},
            ],
        },
    }
    assert grammar.sha256 == hashlib.sha256(grammar.structural_tag.encode()).hexdigest()


@pytest.mark.parametrize(
    ("max_text_tokens", "text"),
    [
        (
            None,
            {
                "type": "any_text",
                "excludes": [
                    "<|endoftext|>", "<|im_start|>", "<|im_end|>",
                    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
                ],
            },
        ),
        (
            5,
            {
                "type": "grammar",
                "grammar": 'root ::= ("" | any any any) ("" | any) ("" | any)\n'
                "any ::= ExcludeToken(388, 389, 390, 391, 392, 393, 394)\n",
            },
        ),
    ],
)  # fmt: skip
def test_text_comes_first_and_holds_no_control_token(max_text_tokens: int, text: Any, tokens: ProtocolTokens) -> None:
    grammar = state_grammar([LETTER], tokens, max_text_tokens, state=OPEN)
    elements = json.loads(grammar.structural_tag)["format"]["elements"]
    assert (elements[0], elements[1]["type"]) == (text, "tag")


@pytest.mark.parametrize(
    ("explore_first", "allowed"),
    [
        (False, {FIRST: ("explore", "submit"), OPEN: ("explore", "submit"), EXHAUSTED: ("submit",)}),
        (True, {FIRST: ("explore",), OPEN: ("explore", "submit"), EXHAUSTED: ("submit",)}),
    ],
)
def test_the_state_decides_the_tools(explore_first: bool, allowed: Any, tokens: ProtocolTokens) -> None:
    grammar = BenchmarkGrammar.from_benchmark(benchmark(first=explore_first), tokens)
    assert {state: grammar[state].allowed_tools for state in grammar} == allowed


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        # gram-01
        ("Let me look.\n" + EXPLORES, True),
        (EXPLORES, True),
        ("Let me look.", False),
        ("", False),
        (EXPLORES + EXPLORES, False),
        (EXPLORES + "\n" + SUBMITS, False),  # call-02
        (EXPLORES + "done", False),
        (EXPLORES.replace("explore", "exploit"), False),
        (SUBMITS.replace("B", "E"), False),
        # call-09: the first call is the action, so nothing may follow it
        ("<think>\nhm\n</think>\n" + SUBMITS, True),
        ("<think>\nhm " + SUBMITS, True),
        ("<think>\nhm " + SUBMITS + "\n</think>\n\n" + SUBMITS, False),
        # one canonical text a call
        (EXPLORES.replace('", "', '","'), False),
        (EXPLORES.replace("\n{", "\n\n{"), False),
        (EXPLORES.replace("{}", "{\n}"), False),
        ('<tool_call>\n{"arguments": {}, "name": "explore"}\n</tool_call>', False),
        # control tokens in text
        ("<|im_start|>" + EXPLORES, False),
        ("<|endoftext|>" + EXPLORES, False),
        ("<tool_response>" + EXPLORES, False),
        ("</tool_call>" + EXPLORES, False),
    ],
)
def test_exactly_one_call_after_free_text_is_legal(
    text: str, accepted: bool, states: Any, encode: Callable[[str], list[int]]
) -> None:
    assert states(LETTER).accepts(OPEN, encode(text + END)) is accepted


def test_an_exhausted_state_accepts_no_explore(states: Any, encode: Callable[[str], list[int]]) -> None:
    compiled = states(LETTER)
    assert not compiled.accepts(EXHAUSTED, encode(EXPLORES + END))
    assert compiled.accepts(EXHAUSTED, encode(SUBMITS + END))


@pytest.mark.parametrize(
    ("submit", "arguments", "accepted"),
    [
        (NUMBER, '{"answer": "-1,024.50"}', True),
        (NUMBER, '{"answer": "1."}', False),
        (NUMBER, '{"answer": "123456789012345"}', True),
        (NUMBER, '{"answer": "1234567890123456"}', False),
        (NUMBER, '{"answer": 42}', False),
        (SHORT, '{"answer": "twelve chars"}', True),
        (SHORT, '{"answer": "thirteen chars"}', False),
        (SHORT, '{"answer": ""}', False),
        (SHORT, '{"answer": "数é"}', True),
        (SHORT, '{"answer": "a\\nb"}', True),
        (CODE, '{"answer": "if i < 3 and a<<b:\\n\\tprint(\\"x\\\\n\\")"}', True),
        (CODE, '{"answer": "List\\u003cint>"}', True),
        (CODE, '{"answer": "a<\\"b"}', True),
        (CODE, '{"answer": "</tool_call>"}', False),
        (CODE, '{"answer": "<|im_start|>"}', False),
        (CODE, '{"answer": "a\nb"}', False),
        (CODE, '{"answer": "\\ud83d"}', False),  # call-06
        (CODE, '{"answer": "\\u0000"}', False),
        (CODE, '{"answer": "\ufffd"}', False),
        (MIXED, '{"answer": "é", "candidate": -2, "sure": true, "kind": "final"}', True),
        (MIXED, '{"answer": "quo\\"te", "candidate": 11, "sure": false, "kind": "final"}', True),
        (MIXED, '{"answer": null, "candidate": 12, "sure": true, "kind": "final"}', False),
        (MIXED, '{"answer": 1e999, "candidate": 3, "sure": true, "kind": "final"}', False),
        (MIXED, '{"candidate": 3, "answer": 7, "sure": true, "kind": "final"}', False),
    ],
)
def test_arguments_follow_the_schema_to_the_letter(
    submit: Tool, arguments: str, accepted: bool, states: Any, encode: Callable[[str], list[int]]
) -> None:
    assert states(submit).accepts(OPEN, encode(submits(arguments) + END)) is accepted


def test_a_call_cannot_be_padded_with_blanks(states: Any, encode: Callable[[str], list[int]]) -> None:
    # gram-02: after each token of a call no blank may come twice in a row.
    blank, newline = encode(" ")[0], encode("\n")[0]
    matcher = states(NUMBER).matcher(OPEN)
    assert all(matcher.accept(token) for token in encode('<tool_call>\n{"name": "submit", "arguments": {"answer": "3'))
    assert not matcher.allowed()[[blank, newline]].any()
    assert not states(NUMBER).accepts(OPEN, encode(submits('{"answer": "3"' + "\n" * 5000 + "}") + END))


def test_no_stop_id_is_legal_before_or_inside_a_call_and_only_the_end_of_turn_after_it(
    states: Any, tokens: ProtocolTokens, encode: Callable[[str], list[int]]
) -> None:
    # gram-06, with <|endoftext|> as the second stop id
    matcher = states(CODE).matcher(OPEN)
    assert not matcher.allowed()[list(tokens.stop_ids)].any()
    assert all(matcher.accept(token) for token in encode('<tool_call>\n{"name": "submit", "arguments": {"answer": "'))
    assert not matcher.allowed()[list(tokens.stop_ids)].any()
    assert all(matcher.accept(token) for token in encode('x"}}\n</tool_call>'))
    assert np.flatnonzero(matcher.allowed()).tolist() == [tokens.end_of_turn_id]
    assert matcher.accept(tokens.end_of_turn_id)
    assert not matcher.allowed().any()
    assert not matcher.accept(tokens.end_of_turn_id)


def test_ordinary_tokens_cannot_spell_a_call_open_in_unbounded_text(states: Any, tokenizer: Any) -> None:
    spelled = tokenizer.convert_tokens_to_ids(list("<tool_call>"))
    matcher = states(LETTER).matcher(OPEN)
    assert [matcher.accept(token) for token in spelled] == [True] * 10 + [False]


def test_rows_of_the_output_head_beyond_the_tokenizer_are_never_legal(states: Any, tokenizer: Any) -> None:
    allowed = states(LETTER).matcher(OPEN).allowed()
    assert allowed.shape == (VOCAB_SIZE,)
    assert not allowed[len(tokenizer) :].any()


@pytest.mark.parametrize("name", ["urn", "gsm8k"])
def test_the_built_in_benchmarks_pass_the_check_at_the_start_of_a_run(
    name: str, tokenizer: Any, tokens: ProtocolTokens, template: ChatTemplate
) -> None:
    grammar = BenchmarkGrammar.from_benchmark(load_benchmark(name), tokens)
    compiled = compile_states(grammar, tokens, tokenizer, vocab_size=VOCAB_SIZE)
    verify_states(grammar, compiled, tokens, template)


def test_the_check_finds_a_state_that_runs_under_another_states_grammar(
    tokenizer: Any, tokens: ProtocolTokens, template: ChatTemplate
) -> None:
    grammar = BenchmarkGrammar.from_benchmark(benchmark(), tokens)
    swapped = BenchmarkGrammar({**grammar, EXHAUSTED: grammar[OPEN]})
    compiled = compile_states(swapped, tokens, tokenizer, vocab_size=VOCAB_SIZE)
    with pytest.raises(GrammarError, match="state exhausted: call of 'explore' accepted: True"):
        verify_states(grammar, compiled, tokens, template)


def test_the_check_finds_an_id_that_stops_the_engine_inside_a_call(
    tokenizer: Any, tokens: ProtocolTokens, template: ChatTemplate
) -> None:
    grammar = BenchmarkGrammar.from_benchmark(benchmark(CODE), tokens)
    compiled = compile_states(grammar, tokens, tokenizer, vocab_size=VOCAB_SIZE)
    letter = tokenizer.convert_tokens_to_ids("z")
    stopping = replace(tokens, stop_ids=(*tokens.stop_ids, letter))
    with pytest.raises(
        GrammarError, match=rf"ids \[{letter}\] are legal at token \d+ of a call, though they end a turn"
    ):
        verify_states(grammar, compiled, stopping, template)


def test_a_compiler_keeps_no_more_than_its_share(tokenizer: Any, tokens: ProtocolTokens) -> None:
    from atlas_rl.grammar import compiled as module

    own = toy_tokenizer()
    for most in range(100, 140):
        grammar = BenchmarkGrammar.from_benchmark(
            benchmark(tool("submit", answer={"type": "string", "maxLength": most})), tokens
        )
        compile_states(grammar, tokens, own, vocab_size=VOCAB_SIZE)
    (compiler,) = module._COMPILERS[own].values()
    assert compiler.cache_limit_bytes == module._CACHE_BYTES
    # Forty such strings would be counted as 400 MB; the last one may come on top of the limit.
    assert 0 < compiler.get_cache_size_bytes() < 4 * module._CACHE_BYTES


def test_a_tag_that_xgrammar_refuses_names_its_state(tokenizer: Any, tokens: ProtocolTokens) -> None:
    broken = replace(state_grammar([LETTER], tokens, 0, state=OPEN), structural_tag='{"type": "structural_tag"}')
    with pytest.raises(GrammarError, match="cannot compile the tag of state open"):
        compile_states({OPEN: broken}, tokens, tokenizer, vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize("text", [0, 40, None])
def test_the_engine_takes_every_tag_without_a_tokenizer(text: int | None, tokens: ProtocolTokens) -> None:
    import xgrammar

    for submit in SUBMIT_TOOLS:
        for state in BenchmarkGrammar.from_benchmark(benchmark(submit, text=text), tokens).values():
            xgrammar.Grammar.from_structural_tag(state.structural_tag)


def test_a_budget_can_be_held_against_the_shortest_and_the_longest_call(
    tokens: ProtocolTokens, template: ChatTemplate
) -> None:
    grammar = state_grammar([EXPLORE, LETTER], tokens, 0, state=OPEN)
    explore = template.encode_text('\n{"name": "explore", "arguments": {}}\n')
    assert grammar.min_call_tokens(template.encode_text) == 1 + len(explore) + 1 + 1
    assert grammar.max_call_tokens == 1 + len('\n{"name": "submit", "arguments": {"answer": "B"}}\n') + 1 + 1
    assert grammar.max_generation_tokens == grammar.max_call_tokens
    assert state_grammar([LETTER], tokens, 40, state=OPEN).max_generation_tokens == grammar.max_call_tokens + 40
    frame = 1 + len('\n{"name": "submit", "arguments": {"answer": ""}}\n') + 1 + 1
    assert state_grammar([CODE], tokens, 0, state=OPEN).max_call_tokens == frame + 2 * 4096
    assert state_grammar([LETTER], tokens, None, state=OPEN).max_generation_tokens is None


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (benchmark(text=-1), "max_text_tokens is -1; write 0 to 65536, or null for text without a bound"),
        (benchmark(text=10**6), "max_text_tokens is 1000000; write 0 to 65536"),
        (benchmark(explore=tool("submit")), "each with its own name"),
        (benchmark().model_copy(update={"submission_field": "solution"}), "submit has no argument 'solution'"),
    ],
)
def test_a_benchmark_that_no_grammar_can_hold_is_refused(broken: Benchmark, what: str, tokens: ProtocolTokens) -> None:
    with pytest.raises(GrammarError, match=what):
        BenchmarkGrammar.from_benchmark(broken, tokens)


@pytest.mark.parametrize("mark", ["endword", "<<SYS>>", "§end", "<\uff5cend>", "§"])
def test_a_control_token_that_no_character_rule_keeps_out_is_refused(mark: str) -> None:
    wild = ProtocolTokens.from_tokenizer(toy_tokenizer(marks=[*MARKS, mark]))
    with pytest.raises(GrammarError, match="do not start with a mark and another ASCII character"):
        state_grammar([SHORT], wild, 40, state=OPEN)
