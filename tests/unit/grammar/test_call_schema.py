import json
import re
from pathlib import Path
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


ANSWER = r"tool 'submit': parameters\.properties\.answer"


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        # gram-04: what XGrammar accepts and does not enforce.
        (
            {"type": "string", "pattern": "^[a-z]{1,9}$", "maxLength": 3},
            r"\.maxLength beside a pattern is not enforced; write the length as \{m,n\} in it",
        ),
        ({"maxLength": 3}, r"\.maxLength without a type is not enforced; write a type out of boolean, integer, string"),
        ({"type": "integer", "multipleOf": 2}, r"\.multipleOf would not be enforced for type integer; remove it"),
        (
            {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
            r"\.type \"array\" is not supported; give each element an argument of its own",
        ),
        ({"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 7}]}, r"\.allOf without a type is not enforced"),
        ({"type": "integer", "not": {"const": 3}}, r"\.not would not be enforced for type integer; remove it"),
        ({"if": {"const": 1}, "then": {"const": 1}}, r"\.if without a type is not enforced"),
        (
            {"type": "object", "properties": {}, "dependentRequired": {}},
            r"\.type \"object\" is not supported; give each field an argument of its own",
        ),
        # what has no bound or no single text
        (
            {"type": "string"},
            r" is a string without a bound, so a policy can write it up to the cap; write maxLength, up to 65536, a "
            "pattern or an enum",
        ),
        ({"type": "string", "minLength": 1}, " is a string without a bound"),
        ({"type": "string", "minLength": 2, "maxLength": 9}, r"\.minLength is 2; only 0 and 1 are enforced"),
        ({"type": "string", "maxLength": 10**6}, r"\.maxLength is 1000000; write a number from 1 to 65536"),
        ({"type": "string", "maxLength": 0}, r"\.maxLength is 0; write a number from 1"),
        ({"type": "integer"}, r"\.minimum is null; write a whole number, as both are needed"),
        ({"type": "integer", "minimum": 0, "maximum": 1.5}, r"\.maximum is 1\.5; write a whole number"),
        ({"type": "integer", "minimum": 0, "maximum": 10**6}, ": minimum 0 and maximum 1000000 must ascend"),
        ({"type": "number"}, r"\.type \"number\" is not supported; use a string with a pattern"),
        (
            {"type": ["string", "null"], "maxLength": 3},
            r"\.type \[\"string\", \"null\"\] is not supported; write one type",
        ),
        ({}, " has no type; write a type out of"),
        ({"enum": []}, r"\.enum is empty"),
        ({"enum": [1.5]}, r"\.enum holds 1\.5, which is no string, integer, boolean or null; correct it"),
        ({"const": 1.5}, r"\.const holds 1\.5"),
        ({"type": "string", "enum": ["A", 1]}, r"\.enum holds 1, which is no string; correct it"),
        ({"enum": ["A"], "const": "A"}, r"\.const cannot stand beside enum; remove it"),
        ({"enum": ["A"], "maxLength": 3}, r"\.maxLength cannot stand beside enum; remove it"),
        # what no call may hold
        ({"enum": ["<tool_call>"]}, r"\.enum holds <tool_call>, which no call may; rename it"),
        ({"enum": ["\ud83d"]}, r"\.enum holds a lone surrogate, which no call may"),
        ({"enum": ["a\x00"]}, r"\.enum holds NUL, which no call may"),
        ({"enum": ["\ufffd"]}, r"\.enum holds \ufffd, which no call may"),
        (True, " is true; write an object with a type or an enum"),
        (
            {"type": "string", "pattern": "^a+$"},
            r"\.pattern '\^a\+\$': '\+' has no upper bound, so a policy can loop in it",
        ),
        ({"type": "string", "pattern": "^<b$"}, r"\.pattern '\^<b\$': may match '<'"),
    ],
)
def test_a_schema_that_would_not_be_enforced_is_refused_with_its_path_and_the_remedy(
    schema: Any, what: str, tokens: ProtocolTokens
) -> None:
    with pytest.raises(GrammarError, match=ANSWER + what) as caught:
        call_part(tool("submit", answer=schema), tokens)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"additionalProperties": True}, r"\.additionalProperties is true; write additionalProperties: false"),
        ({"additionalProperties": 0}, r"\.additionalProperties is 0; write|are no JSON Schema"),
        ({"required": []}, r"\.required is \[\], but properties are \['answer'\].*require every argument"),
        ({"minProperties": 1}, r"\.minProperties would not be enforced; remove it"),
        ({"dependentRequired": {"answer": ["answer"]}}, r"\.dependentRequired would not be enforced; remove it"),
        ({"type": "array"}, r"\.type is \"array\"; write type: \"object\""),
        ({"required": "answer"}, " are no JSON Schema"),
        (
            {"properties": {"</tool_call>": {"enum": [1]}}, "required": ["</tool_call>"]},
            "properties, key '</tool_call>' holds",
        ),
    ],
)
def test_parameters_without_one_canonical_text_are_refused(change: Any, what: str, tokens: ProtocolTokens) -> None:
    loose = NUMBER.model_copy(update={"parameters": {**NUMBER.parameters, **change}})
    with pytest.raises(GrammarError, match=rf"tool 'submit': parameters.*{what}"):
        call_part(loose, tokens)


def test_the_wrong_schemas_of_the_shared_cases_are_refused_or_their_values_are(
    shared: Path, tokens: ProtocolTokens
) -> None:
    cases = [json.loads(line) for line in (shared / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
    (pairs,) = [case["input"]["schemas_and_illegal_values"] for case in cases if case["id"] == "gram-04"]
    assert len(pairs) == 7
    for schema, illegal in pairs:
        with pytest.raises(GrammarError, match=r"would not be enforced|is not enforced|is not supported"):
            call_part(tool("submit", answer=schema), tokens)
        assert schema_fault({"answer": illegal}, tool("submit", answer=schema).parameters, "arguments") != ""


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
        ("^a{9999}$", "512 or less; maxLength can be longer"),
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
        ("^((a{100}){100})$", "words of 10000 characters, more than 4096; lower its repeats"),
    ],
)
def test_a_pattern_outside_the_language_is_refused(pattern: str, what: str) -> None:
    with pytest.raises(GrammarError, match=what):
        read_pattern(pattern, UNSAFE, "answer")
