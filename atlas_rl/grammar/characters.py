r"""Characters of JSON strings as XGrammar's EBNF: which may stand raw, which behind an opener, which as an escape.

An opener is the first character of a control token. A control token cannot be written where no opener is followed by
a character with which a control token goes on.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.protocol import ProtocolTokens

TWO_BYTES = r"\u0080-\u07ff"
MORE_BYTES = (
    r"\u0800-\u0fff\u1000-\ucfff\ud000-\ud7ff\ue000-\uefff\uf000-\ufffc\ufffe-\uffff"
    r"\U00010000-\U0003ffff\U00040000-\U000fffff\U00100000-\U0010ffff"
)
"""Well-formed UTF-8 of three and four bytes but U+FFFD. XGrammar 0.2.3 reads a range rightly only within one group of
lead bytes, and a negated class lets overlong forms and surrogates through."""
ESCAPE = r'"\\" ["\\/bfnrt]'
"""The escapes of two characters."""
_HEX = "[0-9a-fA-F]"


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
        or not set(text[:2]).isdisjoint('"\\')
    ]  # fmt: skip
    if wild:
        raise GrammarError(
            f"control tokens {wild[:4]} do not start with a mark and another ASCII character, so no rule on characters "
            "keeps them out of text; take them out of the tokenizer's added tokens"
        )
    return openers


def char_class(codes: Iterable[int], more: str = "") -> str:
    """EBNF class of ASCII characters and whatever ``more`` lists."""
    listed = sorted(codes)
    starts = [code for code in listed if code - 1 not in listed]
    ends = [code for code in listed if code + 1 not in listed]
    runs = [rf"\x{low:02x}-\x{high:02x}" for low, high in zip(starts, ends, strict=True)]
    return f"[{''.join(runs)}{more}]"


@dataclass(frozen=True, slots=True)
class Alphabet:
    """ASCII codes by where they may stand in a string."""

    plain: frozenset[int]
    """In the open."""
    followers: frozenset[int]
    """Behind an opener, too."""
    openers: frozenset[int]


def alphabet(tokens: ProtocolTokens) -> Alphabet:
    """What the control tokens leave to strings.

    Raises:
        GrammarError: from ``control_openers``.
    """
    openers = frozenset(map(ord, control_openers(tokens)))
    plain = frozenset(range(0x20, 0x80)) - set(map(ord, '"\\')) - openers
    return Alphabet(plain, plain - {ord(text[1]) for text in tokens.control_texts}, openers)


def character_rules(letters: Alphabet) -> list[str]:
    """One character each: v, w (behind an opener), x (costs 2), u (costs 3), o (an opener); q is the closing quote.

    Each ends where "never" follows, which is not so, but makes XGrammar refuse tokens that reach over its end at once.
    XGrammar inlines the rules with 0 into the ones around them, and would inline them into the chain without those.
    """
    escaped = [
        r'"\\u000" [1-9a-fA-F]',
        rf'"\\u00" [1-9a-fA-F] {_HEX}',
        rf'"\\u0" [1-9a-fA-F] {_HEX} {_HEX}',
        rf'"\\u" [1-9a-cA-CeE] {_HEX} {_HEX} {_HEX}',
        rf'"\\u" [dD] [0-7] {_HEX} {_HEX}',
        rf'"\\u" [fF] [0-9a-eA-E] {_HEX} {_HEX}',
        rf'"\\u" [fF] [fF] [0-9a-eA-E] {_HEX}',
        r'"\\u" [fF] [fF] [fF] [0-9a-cA-CeEfF]',
    ]
    return [
        'never ::= never "x"',
        f"v0 ::= {char_class(letters.plain, TWO_BYTES)} | {ESCAPE}",
        f"w0 ::= {char_class(letters.followers, TWO_BYTES)} | {ESCAPE}",
        f"x0 ::= [{MORE_BYTES}]",
        f"u0 ::= {' | '.join(escaped)}",
        f"o0 ::= {char_class(letters.openers)}",
        'q0 ::= "\\""',
        *(f"{name} ::= {name}0 (= never)" for name in "vwxuo"),
        "q ::= q0 (= [,}])",
    ]
