r"""From a tool's argument schema to the one canonical JSON text of a call.

A call is written ``\n{"name": "submit", "arguments": {"answer": "B"}}\n``: keys in the schema's order, ``", "`` and
``": "`` as the only separators, no other whitespace. What XGrammar would accept but not enforce is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atlas_rl.errors import GrammarError, blame
from atlas_rl.grammar.arguments import check_schema, schema_fault
from atlas_rl.grammar.pattern import read_pattern
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.tasks.benchmark import Tool

Format = dict[str, Any]
"""An element of an XGrammar structural tag."""

MAX_STRING_CHARS = 1024
"""Largest ``maxLength``: XGrammar compiles a counted string once per count."""
MAX_INTEGERS = 1000
"""Largest number of values between ``minimum`` and ``maximum``."""

_ANNOTATIONS = {"description", "title", "examples", "default"}
_KEYWORDS = {
    "boolean": {"type"},
    "integer": {"type", "minimum", "maximum"},
    "string": {"type", "pattern", "minLength", "maxLength"},
}
_UNSAFE = frozenset('"\\')
REPLACEMENT = "\ufffd"
"""What a decoder writes for bytes that are no UTF-8: no argument may hold it, so that its sight is proof of damage."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a call."""

    formats: tuple[Format, ...]
    shortest: str
    max_bytes: int | None
    """UTF-8 bytes of its longest text, so also a bound on its tokens; None: unbounded."""

    def __add__(self, other: "Part") -> "Part":
        """One part after the other, neighbouring constants joined."""
        formats = list(self.formats)
        for element in other.formats:
            if formats and formats[-1]["type"] == element["type"] == "const_string":
                formats[-1] = {**element, "value": formats[-1]["value"] + element["value"]}
            else:
                formats.append(element)
        unbounded = self.max_bytes is None or other.max_bytes is None
        total = None if unbounded else (self.max_bytes or 0) + (other.max_bytes or 0)
        return Part(tuple(formats), self.shortest + other.shortest, total)


def constant(text: str) -> Part:
    """A part with one text."""
    return Part(({"type": "const_string", "value": text},), text, len(text.encode()))


def call_part(tool: Tool, tokens: ProtocolTokens) -> Part:
    """Everything between the call tokens, for one tool.

    Raises:
        GrammarError: the tool's schema asks for more than the grammar enforces.
    """
    where = f"tool {tool.name!r}"
    properties = _checked_properties(tool.parameters, where)
    part = constant(f'\n{{"name": {json.dumps(tool.name)}, "arguments": {{')
    for index, (name, schema) in enumerate(properties.items()):
        key = _json_text(name, tokens, f"{where}: argument {name!r}")
        part += constant(f"{', ' if index else ''}{key}: ") + _argument(schema, tokens, f"{where}: argument {name!r}")
    return part + constant("}}\n")


def _checked_properties(parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    with blame(GrammarError, f"{where}: parameters are no JSON Schema"):
        check_schema(parameters)
    unknown = set(parameters) - {"type", "properties", "required", "additionalProperties"} - _ANNOTATIONS
    if unknown:
        raise GrammarError(f"{where}: parameters use {sorted(unknown)}, which would not be enforced; remove them")
    if parameters.get("type") != "object" or parameters.get("additionalProperties") is not False:
        raise GrammarError(
            f"{where}: parameters must say type: object and additionalProperties: false, got type "
            f"{parameters.get('type')!r} and additionalProperties {parameters.get('additionalProperties')!r}"
        )
    properties = dict(parameters.get("properties", {}))
    required = sorted(parameters.get("required", []))
    if required != sorted(properties):
        raise GrammarError(
            f"{where}: properties {sorted(properties)} and required {required} must be the same, as a call has one "
            "canonical text; require every argument"
        )
    return properties


def _argument(schema: Any, tokens: ProtocolTokens, where: str) -> Part:
    if not isinstance(schema, dict):
        raise GrammarError(f"{where}: schema {schema!r} is not an object; give it a type")
    keywords = set(schema) - _ANNOTATIONS
    if keywords & {"enum", "const"}:
        return _values(schema, keywords, tokens, where)
    kind = schema.get("type")
    if kind not in _KEYWORDS:
        raise GrammarError(f"{where}: type {kind!r} is not supported; use an enum, or one of {sorted(_KEYWORDS)}")
    unknown = keywords - _KEYWORDS[kind]
    if unknown:
        raise GrammarError(f"{where}: {sorted(unknown)} of a {kind} would not be enforced; remove them")
    if kind == "boolean":
        return _one_of(["true", "false"])
    return _integer(schema, where) if kind == "integer" else _string(schema, tokens, where)


def _values(schema: dict[str, Any], keywords: set[str], tokens: ProtocolTokens, where: str) -> Part:
    unknown = keywords - {"type", "enum", "const"}
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if unknown or len(keywords & {"enum", "const"}) != 1:
        raise GrammarError(f"{where}: {sorted(keywords)} cannot be used together; keep enum or const, with its type")
    if not values:
        raise GrammarError(f"{where}: enum is empty, so no call could be written; name at least one value")
    for value in values:
        if not isinstance(value, str | bool | int | None) or schema_fault(value, schema, where):
            kind = schema.get("type", "string, integer, boolean or null")
            raise GrammarError(f"{where}: value {value!r} is not a {kind}; correct the enum")
    return _one_of([_json_text(value, tokens, where) for value in values])


def _json_text(value: Any, tokens: ProtocolTokens, where: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    holds = [control for control in (*tokens.control_texts, REPLACEMENT) if control in text]
    if holds or any("\ud800" <= char <= "\udfff" for char in text):
        raise GrammarError(f"{where}: {text!r} holds {holds or 'a lone surrogate'}; no call may; rename it")
    return text


def _one_of(texts: list[str]) -> Part:
    if len(texts) == 1:
        return constant(texts[0])
    options = [{"type": "const_string", "value": text} for text in texts]
    return Part(({"type": "or", "elements": options},), min(texts, key=len), max(len(text.encode()) for text in texts))


def _integer(schema: dict[str, Any], where: str) -> Part:
    low, high = schema.get("minimum"), schema.get("maximum")
    if not isinstance(low, int) or not isinstance(high, int) or not 0 <= high - low < MAX_INTEGERS:
        raise GrammarError(
            f"{where}: an integer needs minimum and maximum with at most {MAX_INTEGERS} values between, got minimum "
            f"{low!r} and maximum {high!r}; use a string with a pattern for larger numbers"
        )
    return _one_of([str(value) for value in range(low, high + 1)])


def _string(schema: dict[str, Any], tokens: ProtocolTokens, where: str) -> Part:
    openers = control_openers(tokens)
    pattern, low, high = schema.get("pattern"), schema.get("minLength", 0), schema.get("maxLength")
    if pattern is not None:
        if "minLength" in schema or "maxLength" in schema:
            raise GrammarError(f"{where}: pattern together with a length is not enforced; write the length as {{m,n}}")
        words = read_pattern(pattern, _UNSAFE | openers, where)
        return Part(({"type": "regex", "pattern": f'"{words.regex}"'},), f'"{words.shortest}"', words.max_chars + 2)
    if high is None:
        if low:
            raise GrammarError(f"{where}: minLength {low} needs a maxLength; add one")
        return Part(({"type": "regex", "pattern": f'"{_free_string(tokens)}"'},), '""', None)
    if not low <= high <= MAX_STRING_CHARS:
        raise GrammarError(f"{where}: lengths {low} to {high} must ascend and end at {MAX_STRING_CHARS} or less")
    regex = f'"{_character(_UNSAFE | openers)}{{{low},{high}}}"'
    return Part(({"type": "regex", "pattern": regex},), f'"{"a" * low}"', 4 * high + 2)


def control_openers(tokens: ProtocolTokens) -> frozenset[str]:
    """First characters of all control tokens: text without them holds none.

    Raises:
        GrammarError: a control token does not start with an ASCII mark and then another ASCII character.
    """
    openers = frozenset(text[0] for text in tokens.control_texts)
    wild = [
        text
        for text in tokens.control_texts
        if len(text) < 2 or not text[:2].isascii() or text[0].isalnum() or text[0].isspace() or text[1] in openers
    ]
    if wild:
        raise GrammarError(
            f"control tokens {wild[:4]} do not start with a mark and another ASCII character, so no rule on characters "
            "keeps them out of text; take them out of the tokenizer's added tokens"
        )
    return openers


_ABOVE_ASCII = (
    r"\u0080-\u07ff\u0800-\u0fff\u1000-\ucfff\ud000-\ud7ff\ue000-\uefff\uf000-\ufffc\ufffe-\uffff"
    "\U00010000-\U0003ffff\U00040000-\U000fffff\U00100000-\U0010ffff"
)
"""All well-formed UTF-8 above ASCII but U+FFFD. XGrammar 0.2.3 reads a range rightly only within one group of lead
bytes, and a negated class lets overlong forms and surrogates through."""


def _character(excluded: frozenset[str]) -> str:
    """Regex class of one well-formed character that JSON strings hold unescaped, without these ASCII ones."""
    codes = [code for code in range(0x20, 0x80) if chr(code) not in excluded]
    starts = [code for code in codes if code - 1 not in codes]
    ends = [code for code in codes if code + 1 not in codes]
    runs = [rf"\x{low:02x}-\x{high:02x}" for low, high in zip(starts, ends, strict=True)]
    return f"[{''.join(runs)}{_ABOVE_ASCII}]"


def _free_string(tokens: ProtocolTokens) -> str:
    """Regex of any JSON string body without control tokens, lone surrogates, NUL or U+FFFD.

    An opener such as ``<`` stands once or twice before a character that no control token continues with; elsewhere it
    is written as an escape.
    """
    openers = control_openers(tokens)
    seconds = frozenset(text[1] for text in tokens.control_texts if len(text) > 1)
    escapes = [r'\\["\\/bfnrt]', *(rf"\\u{ord(opener):04x}" for opener in sorted(openers))]
    opening = "[" + "".join(f"\\x{ord(opener):02x}" for opener in sorted(openers)) + "]{1,2}"
    afterwards = [opening + _character(_UNSAFE | openers | seconds), *(opening + escape for escape in escapes)]
    return f"({'|'.join([_character(_UNSAFE | openers), *escapes, *afterwards])})*"
