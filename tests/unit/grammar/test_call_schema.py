import json
import re
from typing import Any

import pytest
from grammar_tools import CODE, MIXED, NUMBER, SHORT, tool

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.arguments import schema_fault
from atlas_rl.grammar.pattern import read_pattern
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.schema import call_part
from atlas_rl.tasks.benchmark import Tool

UNSAFE = frozenset('"\\<')


def test_a_call_without_arguments_is_one_constant(tokens: ProtocolTokens) -> None:
    part = call_part(tool("explore"), tokens)
    text = '\n{"name": "explore", "arguments": {}}\n'
    assert part.formats == ({"type": "const_string", "value": text},)
    assert (part.shortest, part.max_bytes) == (text, len(text))


def test_an_enum_becomes_its_json_texts(tokens: ProtocolTokens) -> None:
    part = call_part(tool("submit", answer={"enum": ["A", 7, None, "é"]}), tokens)
    assert part.formats == (
        {"type": "const_string", "value": '\n{"name": "submit", "arguments": {"answer": '},
        {"type": "or", "elements": [{"type": "const_string", "value": v} for v in ('"A"', "7", "null", '"é"')]},
        {"type": "const_string", "value": "}}\n"},
    )
    assert part.max_bytes == len('\n{"name": "submit", "arguments": {"answer": "é"}}\n'.encode())


def test_a_pattern_becomes_a_quoted_regex_without_anchors(tokens: ProtocolTokens) -> None:
    part = call_part(NUMBER, tokens)
    assert part.formats[1] == {"type": "regex", "pattern": r'"\-?[0-9][,0-9]{0,14}(\.[0-9]{1,6})?"'}
    assert part.max_bytes == len('\n{"name": "submit", "arguments": {"answer": ""}}\n') + 1 + 1 + 14 + 7


@pytest.mark.parametrize("submit", [NUMBER, SHORT, CODE, MIXED], ids=["pattern", "length", "free", "mixed"])
def test_the_shortest_call_is_json_that_fits_the_schema(submit: Tool, tokens: ProtocolTokens) -> None:
    call = json.loads(call_part(submit, tokens).shortest)
    assert schema_fault(call["arguments"], submit.parameters, "arguments") == ""


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        # gram-04: what XGrammar accepts and does not enforce.
        ({"type": "string", "pattern": "^[a-z]{1,9}$", "maxLength": 3}, "pattern together with a length"),
        ({"maxLength": 3}, "type None is not supported"),
        ({"type": "integer", "multipleOf": 2}, r"\['multipleOf'\] of a integer would not be enforced"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "type 'array' is not supported"),
        ({"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 7}]}, "type None is not supported"),
        ({"type": "integer", "not": {"const": 3}}, r"\['not'\]"),
        ({"type": "object", "properties": {}, "dependentRequired": {}}, "type 'object' is not supported"),
        # what has no bound or no single text
        ({"type": "integer"}, "needs minimum and maximum"),
        ({"type": "integer", "minimum": 0, "maximum": 10**6}, "needs minimum and maximum"),
        ({"type": "number"}, "type 'number' is not supported"),
        ({"type": "string", "minLength": 2}, "minLength 2 needs a maxLength"),
        ({"type": "string", "maxLength": 10**6}, "lengths 0 to 1000000"),
        ({"enum": []}, "enum is empty"),
        ({"enum": [1.5]}, "value 1.5"),
        ({"type": "string", "enum": ["A", 1]}, "value 1 is not a string"),
        ({"enum": ["<tool_call>"]}, "holds"),
        ({"enum": ["\ud83d"]}, "lone surrogate"),
        (True, "schema True is not an object"),
        ({"type": "string", "pattern": "("}, "no JSON Schema|pattern"),
    ],
)
def test_a_schema_that_would_not_be_enforced_is_refused(schema: Any, what: str, tokens: ProtocolTokens) -> None:
    with pytest.raises(GrammarError, match=what):
        call_part(tool("submit", answer=schema), tokens)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"additionalProperties": True}, "additionalProperties: false"),
        ({"required": []}, "require every argument"),
        ({"minProperties": 1}, r"\['minProperties'\]"),
        ({"type": "array"}, "type: object"),
        ({"required": "answer"}, "no JSON Schema"),
    ],
)
def test_parameters_without_one_canonical_text_are_refused(change: Any, what: str, tokens: ProtocolTokens) -> None:
    loose = NUMBER.model_copy(update={"parameters": {**NUMBER.parameters, **change}})
    with pytest.raises(GrammarError, match=what):
        call_part(loose, tokens)


@pytest.mark.parametrize(
    ("pattern", "regex", "shortest", "max_chars"),
    [
        ("^$", "", "", 0),
        ("^abc$", "abc", "abc", 3),
        (r"^\d{2,3}$", "[0-9]{2,3}", "00", 3),
        ("^(yes|no)$", "(yes|no)", "no", 3),
        ("^(?:a[xyz]?){2}$", "(a[xyz]?){2}", "aa", 4),
        (r"^[\]a-c\-]$", r"[\-\]abc]", "-", 1),
        ("^[]a]$", r"[\]a]", "]", 1),
        ("^[a-]$", r"[\-a]", "-", 1),
    ],
)
def test_a_pattern_is_read_with_its_shortest_and_longest_word(
    pattern: str, regex: str, shortest: str, max_chars: int
) -> None:
    words = read_pattern(pattern, UNSAFE, "answer")
    assert (words.regex, words.shortest, words.max_chars) == (regex, shortest, max_chars)
    assert re.search(pattern, words.shortest)


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("abc$", "must start with"),
        ("^abc", "must start with"),
        ("^a|b$", "outside a group"),
        ("^a+$", "no upper bound"),
        ("^a*$", "no upper bound"),
        ("^a{2,}$", r"not \{m\}"),
        ("^a{3,2}$", "must ascend"),
        ("^a{9999}$", "4096 or less"),
        ("^a?{2}$", "repeats a repeat"),
        ("^.$", "'.' is not supported"),
        ("^[^a]$", "negated"),
        ("^[z-a]$", "descends"),
        ('^"$', "may match '\"'"),
        ("^[!-~]$", "may match"),
        ("^a<b$", "may match '<'"),
        (r"^\w$", r"escape \\w"),
        ("^é$", "may match 'é'"),
        ("^(?=a)$", "only plain"),
        ("^(a$", "not closed"),
        ("^[a$", "ends too early"),
        ("^a$b$", "after its end"),
        ("^a)$", "after its end|ends too early"),
    ],
)
def test_a_pattern_outside_the_language_is_refused(pattern: str, what: str) -> None:
    with pytest.raises(GrammarError, match=what):
        read_pattern(pattern, UNSAFE, "answer")
