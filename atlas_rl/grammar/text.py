"""The free text before a call: any tokens but control tokens, as many as a bound in tokens allows."""

from collections.abc import Sequence

from atlas_rl.grammar.parts import Format
from atlas_rl.grammar.protocol import ProtocolTokens

MAX_TEXT_TOKENS = 65536
"""Largest bound."""
_MAX_LISTED = 4096
"""Largest bound that is written token by token, which engines recognise as free text; XGrammar compiles 4,096 of them
in 0.1 s but 16,384 in 4 s."""
_LOOSEST_RUNG = 16384
"""Where the ladder of text without a bound begins."""


def text_format(max_tokens: int | None, tokens: ProtocolTokens) -> Format | None:
    """Free text in which no control token can stand; of the added tokens only think marks may.

    Args:
        max_tokens: Most tokens, at least 0; None: no bound.
        tokens: The tokenizer's protocol tokens.

    Returns:
        None if there is to be no text.
    """
    if max_tokens is None:
        return {"type": "any_text", "excludes": list(tokens.control_texts)}
    if max_tokens == 0:
        return None
    return {"type": "grammar", "grammar": _at_most(max_tokens, tokens.control_ids)}


def tighter_bounds(max_tokens: int | None) -> list[int]:
    """The powers of two below a bound, largest first, and 0; nothing is tighter than 0."""
    if max_tokens == 0:
        return []
    top = 2 * _LOOSEST_RUNG if max_tokens is None else max_tokens
    return [2**power for power in reversed(range((top - 1).bit_length()))] + [0]


def _at_most(max_tokens: int, excluded: Sequence[int]) -> str:
    """XGrammar's EBNF for 0 to ``max_tokens`` tokens, none of them excluded; at least 1.

    XGrammar 0.2.3 ignores the exclusions of a counted token, so all are spelled out. They stand in optional runs of
    half of what is left: every count is a sum of runs, and a matcher follows a handful of runs, not one path a token.
    """
    runs, left = [], max_tokens
    while left:
        runs.append((left + 1) // 2)
        left //= 2
    rules: dict[int, str] = {}
    listed = [" ".join(["any"] * run) if max_tokens <= _MAX_LISTED else _halved(run, rules) for run in runs]
    root = " ".join(f'("" | {run})' for run in listed)
    return "\n".join([f"root ::= {root}", *rules.values(), f"any ::= ExcludeToken({', '.join(map(str, excluded))})\n"])


def _halved(run: int, rules: dict[int, str]) -> str:
    """Name of the rule for exactly ``run`` tokens, put into ``rules`` with all that it is made of."""
    if run == 1:
        return "any"
    if run not in rules:
        first, second = _halved(run - run // 2, rules), _halved(run // 2, rules)
        rules[run] = f"any{run} ::= {first} {second}"
    return f"any{run}"
