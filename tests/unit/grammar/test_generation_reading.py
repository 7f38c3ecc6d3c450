import json
from collections.abc import Callable
from typing import Any

import pytest
from grammar_tools import CODE, EXPLORE, LETTER, tool

from atlas_rl.errors import EngineError
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.reading import Reading, read_generation
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.records.vocabulary import Finish, TerminalReason
from atlas_rl.tasks.benchmark import Tool

B, E, END = "<tool_call>", "</tool_call>", "<|im_end|>"
EXPLORES = f'{B}\n{{"name": "explore", "arguments": {{}}}}\n{E}'
SUBMITS = f'{B}\n{{"name": "submit", "arguments": {{"answer": "B"}}}}\n{E}'
Read = Callable[..., Reading]


@pytest.fixture
def read(tokens: ProtocolTokens, template: ChatTemplate, encode: Callable[[str], list[int]]) -> Read:
    """Read a text, or ids, as a generation of turn 3."""

    def reader(
        sampled: str | list[int], *, finish: Finish = Finish.EOS, tools: tuple[Tool, ...] = (EXPLORE, LETTER)
    ) -> Reading:
        ids = encode(sampled) if isinstance(sampled, str) else sampled
        return read_generation(ids, tokens=tokens, tools=tools, decode=template.decode, finish=finish, turn_id=3)

    return reader


def submit(body: str) -> str:
    return f"{B}{body}{E}{END}"


def test_text_then_a_call_then_the_end_of_turn_may_run(read: Read, encode: Any) -> None:
    reading = read("Let me see. " + SUBMITS + END)
    assert reading.terminal is None
    assert reading.call.model_dump() == {
        "turn_id": 3,
        "name": "submit",
        "arguments": {"answer": "B"},
        "raw_text": '\n{"name": "submit", "arguments": {"answer": "B"}}\n',
        "valid": True,
        "reason": "",
        "extra_calls": 0,
    }
    start = len(encode("Let me see. "))
    assert (reading.call_start, reading.call_end) == (start, start + len(encode(SUBMITS)))


def test_a_close_tag_spelled_inside_an_argument_is_text(read: Read, template: ChatTemplate, encode: Any) -> None:
    # call-01
    body = template.encode_text('\n{"name": "submit", "arguments": {"answer": "use </tool_call> here"}}\n')
    reading = read([*encode("ok\n" + B), *body, *encode(E + END)], tools=(EXPLORE, CODE))
    assert (reading.terminal, reading.call.arguments) == (None, {"answer": "use </tool_call> here"})


def test_two_calls_are_a_verdict_and_neither_runs(read: Read) -> None:
    # call-02
    reading = read(EXPLORES + "\n" + SUBMITS + END)
    assert (reading.terminal, reading.call.extra_calls) == (TerminalReason.MULTIPLE_CALLS, 1)
    assert (reading.call.valid, reading.call.name) == (False, None)


@pytest.mark.parametrize(
    "cut",
    [
        f'plan...\n{B}\n{{"name": "submit", "arguments": {{"answer": "B',  # call-03
        SUBMITS.removesuffix(E),
        B,
        "still thinking",
        "",
    ],
)
def test_a_cut_generation_without_a_closed_call_runs_nothing(cut: str, read: Read) -> None:
    reading = read(cut, finish=Finish.LENGTH)
    assert (reading.terminal, reading.call.name, reading.call.arguments) == (TerminalReason.LENGTH, None, None)


def test_a_generation_cut_between_its_call_and_the_end_of_turn_still_runs(read: Read) -> None:
    assert read(SUBMITS, finish=Finish.LENGTH).terminal is None


def test_the_first_call_is_the_action_even_inside_think_marks(read: Read) -> None:
    # call-09
    assert read("<think>\nmaybe " + SUBMITS + END).call.arguments == {"answer": "B"}
    second = read("<think>\nmaybe " + SUBMITS + "\n</think>\n\n" + SUBMITS + END)
    assert second.terminal is TerminalReason.MULTIPLE_CALLS


def test_a_turn_that_ends_without_a_call_is_no_call(read: Read) -> None:
    assert read("I give up." + END).terminal is TerminalReason.NO_CALL


def test_a_call_spelled_by_ordinary_tokens_is_no_call(read: Read, template: ChatTemplate, encode: Any) -> None:
    assert read([*template.encode_text(SUBMITS), *encode(END)]).terminal is TerminalReason.NO_CALL


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (EXPLORES + "\n" + END, "1 tokens follow the call; end the turn after it"),
        (E + EXPLORES + END, "a call-end token stands before the call"),
        (EXPLORES.removesuffix(E) + END, "generation ended inside its call"),
        (submit('{"name": "explore", "arguments": {}'), "call is not strict JSON: Expecting ',' delimiter"),
        (submit('{"name": "explore", "arguments": {}} x'), "call is not strict JSON: Extra data"),
        (submit(""), "call is not strict JSON: Expecting value"),
        (submit("[]"), "call must be an object with name and arguments, got 'list'"),
        (submit('{"name": "explore"}'), "call must be an object with name and arguments, got ['name']"),
        (submit('{"name": "explore", "arguments": {}, "id": 1}'), "call must be an object with name and arguments"),
        (submit('{"name": 7, "arguments": {}}'), "name must be a string, got int"),
        (submit('{"name": "explore", "arguments": []}'), "arguments must be an object, got list"),
        (submit('{"name": "exploit", "arguments": {}}'), "tool 'exploit' is not allowed here; allowed: ['explore'"),
        (submit('{"name": "explore", "arguments": {"k": 1}}'), "arguments must satisfy additionalProperties: false"),
        (submit('{"name": "submit", "arguments": {}}'), 'arguments must satisfy required: ["answer"]'),
        (submit('{"name": "submit", "arguments": {"answer": "E"}}'), "arguments['answer'] must satisfy enum"),
        (submit('{"name": "explore", "name": "submit", "arguments": {}}'), "key 'name' is repeated"),
        (submit('{"name": "submit", "arguments": {"answer": NaN}}'), "NaN is no JSON number"),
        (submit('{"name": "submit", "arguments": {"answer": -Infinity}}'), "-Infinity is no JSON number"),
        (submit('{"name": "submit", "arguments": {"answer": 1e999}}'), "number 1e999 is beyond a double"),
        (submit('{"name": "submit", "arguments": {"answer": ' + "9" * 5000 + "}}"), "call is not strict JSON: Exceeds"),
        (submit('{"name": "submit", "arguments": {"answer": ' + "[" * 99999 + "}}"), "call nests too deeply"),
    ],
)
def test_a_call_that_cannot_run_says_why_in_one_line(text: str, reason: str, read: Read) -> None:
    reading = read(text)
    assert reading.terminal is TerminalReason.INVALID_CALL
    assert reason in reading.call.reason
    assert "\n" not in reading.call.reason


def test_bytes_that_are_no_utf8_are_never_replaced_silently(read: Read, tokenizer: Any, encode: Any) -> None:
    half = tokenizer.convert_tokens_to_ids("Ã")
    broken = [*encode(f'{B}\n{{"name": "submit", "arguments": {{"answer": "'), half, *encode(f'"}}}}\n{E}{END}')]
    assert read(broken, tools=(CODE,)).call.reason == "call holds bytes that are no UTF-8"


CUT = "; its last bytes are no whole character and stand in the token ids alone"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f'so\n{B}\n{{"name": "submit", "arguments": {{"answer": "caf', "generation was cut inside its call"),
        ("let me see, caf", "generation was cut before any call"),
        ("", "generation was cut before any call"),
    ],
)
def test_a_character_that_the_cut_tears_apart_is_marked_in_the_reason(
    text: str, reason: str, read: Read, tokenizer: Any, encode: Any
) -> None:
    first, second = tokenizer.convert_tokens_to_ids(["Ã", "©"])
    torn = read([*encode(text), first], finish=Finish.LENGTH, tools=(CODE,))
    assert (torn.terminal, torn.call.reason) == (TerminalReason.LENGTH, reason + CUT)
    assert torn.call.raw_text == (text.partition(B)[2] and text.partition(B)[2] + "\ufffd")
    whole = read([*encode(text), first, second], finish=Finish.LENGTH, tools=(CODE,))
    assert (whole.terminal, whole.call.reason) == (TerminalReason.LENGTH, reason)


def test_a_torn_character_before_the_call_is_text_and_the_call_runs(read: Read, tokenizer: Any, encode: Any) -> None:
    half = tokenizer.convert_tokens_to_ids("Ã")
    assert read([half, *encode(SUBMITS + END)]).call.arguments == {"answer": "B"}


@pytest.mark.parametrize("answer", ["\ud83d", "\x00"])
def test_escapes_that_stores_fear_are_read_as_they_are(answer: str, read: Read) -> None:
    # call-06
    body = json.dumps({"name": "submit", "arguments": {"answer": answer}})
    assert read(submit(body), tools=(CODE,)).call.arguments == {"answer": answer}


def test_integers_of_any_length_below_pythons_limit_are_exact(read: Read) -> None:
    huge = tool("submit", answer={"type": "integer"})
    reading = read(submit('{"name": "submit", "arguments": {"answer": ' + "9" * 4000 + "}}"), tools=(huge,))
    assert reading.call.arguments == {"answer": 10**4000 - 1}


def test_a_tool_of_another_state_is_not_allowed(read: Read) -> None:
    assert read(EXPLORES + END, tools=(LETTER,)).terminal is TerminalReason.INVALID_CALL


def test_an_eos_that_is_no_stop_id_is_the_engines_fault(read: Read) -> None:
    with pytest.raises(EngineError, match="none of the stop ids"):
        read(EXPLORES)
