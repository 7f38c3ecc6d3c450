r"""From a tool's argument schema to the one canonical JSON text of a call.

A call is written ``\n{"name": "submit", "arguments": {"answer": "B"}}\n``: keys in the schema's order, ``", "`` and
``": "`` as the only separators, no other whitespace. What XGrammar would accept but not enforce is refused.
"""

import json
from collections.abc import Mapping
from typing import Any

from atlas_rl.errors import GrammarError, blame
from atlas_rl.grammar.arguments import check_schema, schema_fault
from atlas_rl.grammar.characters import control_openers
from atlas_rl.grammar.parts import Part, constant, one_of
from atlas_rl.grammar.pattern import read_pattern
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.strings import MAX_LENGTH, string_part
from atlas_rl.tasks.benchmark import Tool

MAX_INTEGERS = 1000
"""Largest number of values between ``minimum`` and ``maximum``."""
REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are no UTF-8: no argument may hold it, so that its sight is proof of damage."""

_ANNOTATIONS = {"description", "title", "examples", "default"}
_KEYWORDS = {
    "boolean": {"type"},
    "integer": {"type", "minimum", "maximum"},
    "string": {"type", "pattern", "minLength", "maxLength"},
}
_INSTEAD = {
    "array": "give each element an argument of its own",
    "number": "use a string with a pattern, such as ^-?[0-9]{1,9}$",
    "object": "give each field an argument of its own",
    "null": "use enum: [null]",
}
"""What to write instead of a type that is not supported."""
_UNSAFE = frozenset('"\\')


def call_part(tool: Tool, tokens: ProtocolTokens) -> Part:
    """Everything between the call tokens, for one tool.

    Raises:
        GrammarError: the tool's schema asks for more than the grammar enforces; the message names the tool, the path in
            its schema and the remedy.
    """
    where = f"tool {tool.name!r}: parameters"
    properties = _checked_properties(tool.parameters, where)
    part = constant(f'\n{{"name": {json.dumps(tool.name)}, "arguments": {{')
    keys = [_json_text(name, tokens, f"{where}.properties, key {name!r}") for name in properties]
    followings = [*(f", {key}: " for key in keys[1:]), "}}\n"]
    if keys:
        part += constant(f"{keys[0]}: ")
    for (name, schema), following in zip(properties.items(), followings, strict=False):
        part += _argument(schema, tokens, f"{where}.properties.{name}", following) + constant(following)
    return part if keys else part + constant("}}\n")


def _checked_properties(parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    with blame(GrammarError, f"{where} are no JSON Schema"):
        check_schema(parameters)
    unknown = sorted(set(parameters) - {"type", "properties", "required", "additionalProperties"} - _ANNOTATIONS)
    if unknown:
        raise GrammarError(f"{where}.{unknown[0]} would not be enforced; remove it")
    for key, wanted in (("type", "object"), ("additionalProperties", False)):
        if parameters.get(key) != wanted or type(parameters.get(key)) is not type(wanted):
            raise GrammarError(f"{where}.{key} is {_shown(parameters.get(key))}; write {key}: {_shown(wanted)}")
    properties = dict(parameters.get("properties", {}))
    required = sorted(parameters.get("required", []))
    if required != sorted(properties):
        raise GrammarError(
            f"{where}.required is {required}, but properties are {sorted(properties)}, and a call has one canonical "
            "text; require every argument"
        )
    return properties


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _argument(schema: Any, tokens: ProtocolTokens, where: str, following: str) -> Part:
    if not isinstance(schema, dict):
        raise GrammarError(f"{where} is {_shown(schema)}; write an object with a type or an enum")
    keywords = set(schema) - _ANNOTATIONS
    if keywords & {"enum", "const"}:
        return _values(schema, keywords, tokens, where)
    kind = schema.get("type")
    if kind is None:
        first = next(iter(sorted(keywords)), None)
        raise GrammarError(
            f"{where}{f'.{first} without a type is not enforced' if first else ' has no type'}; write a type out of "
            f"{', '.join(sorted(_KEYWORDS))}, or an enum"
        )
    if not isinstance(kind, str) or kind not in _KEYWORDS:
        instead = _INSTEAD.get(kind, "") if isinstance(kind, str) else "write one type"
        raise GrammarError(
            f"{where}.type {_shown(kind)} is not supported; {instead}, or use one of {', '.join(sorted(_KEYWORDS))}"
        )
    unknown = sorted(keywords - _KEYWORDS[kind])
    if unknown:
        raise GrammarError(f"{where}.{unknown[0]} would not be enforced for type {kind}; remove it")
    if kind == "boolean":
        return one_of(["true", "false"])
    return _integer(schema, where) if kind == "integer" else _string(schema, tokens, where, following)


def _values(schema: dict[str, Any], keywords: set[str], tokens: ProtocolTokens, where: str) -> Part:
    unknown = sorted(keywords - {"type", "enum", "const"})
    if unknown or {"enum", "const"} <= keywords:
        beside = "enum" if "enum" in schema else "const"
        raise GrammarError(f"{where}.{unknown[0] if unknown else 'const'} cannot stand beside {beside}; remove it")
    name = "enum" if "enum" in schema else "const"
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if not values:
        raise GrammarError(f"{where}.enum is empty, so no call could be written; name at least one value")
    for value in values:
        if not isinstance(value, str | bool | int | None) or schema_fault(value, schema, where):
            kind = schema.get("type", "string, integer, boolean or null")
            raise GrammarError(f"{where}.{name} holds {_shown(value)}, which is no {kind}; correct it")
    return one_of([_json_text(value, tokens, f"{where}.{name}") for value in values])


def _json_text(value: Any, tokens: ProtocolTokens, where: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    holds = [control for control in (*tokens.control_texts, REPLACEMENT) if control in text]
    if holds or "\x00" in str(value) or any("\ud800" <= char <= "\udfff" for char in text):
        what = holds[0] if holds else "NUL" if "\x00" in str(value) else "a lone surrogate"
        raise GrammarError(f"{where} holds {what}, which no call may; rename it")
    return text


def _integer(schema: dict[str, Any], where: str) -> Part:
    for key in ("minimum", "maximum"):
        if type(schema.get(key)) is not int:
            raise GrammarError(f"{where}.{key} is {_shown(schema.get(key))}; write a whole number, as both are needed")
    low, high = schema["minimum"], schema["maximum"]
    if not 0 <= high - low < MAX_INTEGERS:
        raise GrammarError(
            f"{where}: minimum {low} and maximum {high} must ascend with at most {MAX_INTEGERS} values; use a string "
            "with a pattern for larger numbers"
        )
    return one_of([str(value) for value in range(low, high + 1)])


def _string(schema: dict[str, Any], tokens: ProtocolTokens, where: str, following: str) -> Part:
    pattern, low, high = schema.get("pattern"), schema.get("minLength", 0), schema.get("maxLength")
    if pattern is not None:
        if "minLength" in schema or "maxLength" in schema:
            key = "maxLength" if "maxLength" in schema else "minLength"
            raise GrammarError(f"{where}.{key} beside a pattern is not enforced; write the length as {{m,n}} in it")
        words = read_pattern(pattern, _UNSAFE | control_openers(tokens), f"{where}.pattern")
        return Part(({"type": "regex", "pattern": f'"{words.regex}"'},), f'"{words.shortest}"', words.max_chars + 2)
    if high is None:
        raise GrammarError(
            f"{where} is a string without a bound, so a policy can write it up to the cap; write maxLength, up to "
            f"{MAX_LENGTH}, a pattern or an enum"
        )
    if not 1 <= high <= MAX_LENGTH:
        raise GrammarError(f"{where}.maxLength is {high}; write a number from 1 to {MAX_LENGTH}")
    if low not in (0, 1):
        raise GrammarError(f"{where}.minLength is {low}; only 0 and 1 are enforced: write a pattern with {{m,n}}")
    return string_part(tokens, int(high), is_nonempty=bool(low), following=following)
