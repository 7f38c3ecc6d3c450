r"""Free strings of bounded length, in a form that XGrammar 0.2.3 compiles and fills masks for quickly.

Written as a counted regex, a string of a thousand characters takes XGrammar seconds to compile, and written as a count
of a small rule it takes seconds a token: tokens that reach over the end of a rule must be tried one by one. So the two
jobs are split. A chain of tiny rules counts, and admits tokens of one character only. Beside it, wherever enough of the
count is left, stands a rule that admits longer tokens: it reads what could follow and then leads nowhere, so it adds
nothing to what can be written, only to what can be written with one token. The mask of a state is the union.

Every character costs 1, one of three or four UTF-8 bytes 2, a ``\uXXXX`` 3, and the cost is bounded by ``maxLength``:
no string has more characters than that, nor more than twice as many bytes between its quotes.
"""

import json

from atlas_rl.grammar.characters import ESCAPE, MORE_BYTES, TWO_BYTES, Alphabet, alphabet, char_class, character_rules
from atlas_rl.grammar.parts import Part
from atlas_rl.grammar.protocol import ProtocolTokens

MAX_LENGTH = 65536
"""Largest ``maxLength``; compiling does not take longer with it."""

_BLOCK = 32
"""Cost of a block: a string counts whole blocks and then single characters."""
_OVERFLOW = 3
"""What a block may cost more, when its last character costs more than was left, or an opener takes its follower in."""
_RUN = 16
"""Blocks in a run. XGrammar follows a count above 128 along 128 ways at once, so runs are counted and then blocks."""
_REACHES = (32, 8, 3, 1)
"""How far the rules for longer tokens reach beyond a first character, in cost; the longest that fits stands."""

_STATED = ("s", _REACHES[0])
_COSTS = (("v", 1), ("x", 2), ("u", 3))
"""Rules of one character and what it costs."""
_COMMON = frozenset(map(ord, " abcdefghijklmnopqrstuvwxyz"))
"""Rules for longer tokens are split in two here by their first character. XGrammar joins a mask of a thousand refused
tokens or more to the others before it tries what is uncertain; a mask of fewer comes too late."""


def string_part(tokens: ProtocolTokens, max_length: int, *, is_nonempty: bool, following: str) -> Part:
    """A quoted JSON string in which no control token, NUL, lone surrogate or U+FFFD can be written.

    A character that opens a control token stands before any character that none of them goes on with, but not before
    an escape by code.

    Args:
        tokens: The tokenizer's protocol tokens.
        max_length: Most characters, from 1 to ``MAX_LENGTH``.
        is_nonempty: Whether the string has at least one character.
        following: What stands behind the closing quote.

    Raises:
        GrammarError: no rule on characters keeps a control token out.
    """
    num_blocks = max(0, max_length - _BLOCK - _OVERFLOW) // (_BLOCK + _OVERFLOW)
    tail = max_length - num_blocks * (_BLOCK + _OVERFLOW)
    letters = alphabet(tokens)
    rules = [*character_rules(letters), *_helpers(letters, max_length, following)]
    rules += _tail(tail, is_nonempty=is_nonempty)
    root = "first" if is_nonempty else f"a{tail}"
    if num_blocks:
        rules += _blocks(num_blocks, is_nonempty=is_nonempty)
        root = f"(ended | {' '.join(_exactly(num_blocks))} a{tail})"
    text = "\n".join([f'root ::= "\\"" {root}', *rules])
    return Part(
        ({"type": "grammar", "grammar": f"{text}\n"},), '"a"' if is_nonempty else '""', max_bytes=2 * max_length + 2
    )


def _helpers(letters: Alphabet, max_length: int, following: str) -> list[str]:
    """s and t (behind an opener) by reach: a character, and how a token that begins with it may go on.

    h and g (behind an opener) are what may follow, by the cost that is left of the reach, the end of the string
    included; both end in "never". After the sampled token they are still followed, character by character, which takes
    memory. So the rule that stands at nearly every place, s of the longest reach, states them as a lookahead instead:
    XGrammar believes what is stated of a rule that stands in one place, admits what fits it, and follows nothing. No
    token may hold more than two openers in a row, as a block can end behind the first.
    """
    openers = char_class(letters.openers)
    reaches = [reach for reach in _REACHES if reach < max_length]
    rules = [f"end ::= q {json.dumps(following, ensure_ascii=False)} never"]
    for left in range(max(reaches, default=-1), -1, -1):
        steps = [f"v h{left - 1}"] * (left > 0) + [f"x h{left - 2}", f"o g{left - 1}"] * (left > 1)
        rules.append(f"h{left} ::= {' | '.join([*steps, 'end'])}")
        if left:
            second = [f"o {step}" for step in _follower(left - 1)]
            rules.append(f"g{left} ::= {' | '.join(_follower(left) + second)}")
    for name, allowed in (("s", letters.plain), ("t", letters.followers)):
        common, others = char_class(allowed & _COMMON), char_class(allowed - _COMMON, TWO_BYTES)
        for reach in reaches:
            after = [f"g{reach}"] if name == "s" else _follower(reach)
            parts = {
                "l": [f"{common} h{reach}"],
                "r": [f"{others} h{reach}", f"{ESCAPE} h{reach}"],
                "x": [f"[{MORE_BYTES}] h{reach - 1}"],
                "o": [f"{openers} {step}" for step in after],
            }
            if (name, reach) == _STATED:
                rest = f"{char_class(allowed - _COMMON, TWO_BYTES + MORE_BYTES)} | {ESCAPE}"
                stated = {"l": (common, f"h{reach - 1}"), "r": (rest, f"h{reach - 1}"), "o": (openers, f"g{reach}")}
                rules.append(f"s{reach} ::= {' | '.join(f's{reach}{part} never' for part in stated)}")
                rules += [f"s{reach}{part} ::= {one} | never (= {then})" for part, (one, then) in stated.items()]
            else:
                rules.append(f"{name}{reach} ::= {' | '.join(f'{name}{reach}{part}' for part in parts)}")
                rules += [f"{name}{reach}{part} ::= {' | '.join(ways)}" for part, ways in parts.items()]
    return rules


def _follower(left: int) -> list[str]:
    """Ways to go on behind an opener, without a further one, in a reach of which ``left`` is left."""
    return [f"w h{left - 1}"] * (left > 0) + [f"x h{left - 2}"] * (left > 1)


def _longer(name: str, left: int) -> list[str]:
    """The rule for longer tokens, if one reaches no further than ``left``."""
    return [f"{name}{reach}" for reach in _REACHES if left > reach][:1]


def _steps(chain: str, left: int, *, end: str | None, exceeds: bool = False) -> list[str]:
    """One character, then the rule for what is left of the cost.

    Args:
        chain: Two letters: the rules in the open, and behind an opener.
        left: Cost that is left, at least 1.
        end: What stands where nothing is left; None: no character may take the last of it.
        exceeds: Whether a character may cost more than is left.
    """
    steps = [f"{rule} {chain[0]}{left - cost}" for rule, cost in _COSTS if cost < left]
    if end is not None:
        steps += [f"{rule}{end}" for rule, cost in _COSTS if cost == left or (exceeds and cost > left)]
    return steps + [f"o {chain[1]}{left - 1}"] * (left > 1)


def _behind(steps: list[str]) -> list[str]:
    r"""The same behind an opener, where no ``\uXXXX`` stands: it would cost too much at the end of a block."""
    return [f"w{step[1:]}" if step[0] == "v" else step for step in steps if step[0] != "u"]


def _tail(most: int, *, is_nonempty: bool) -> list[str]:
    """a and b (behind an opener): the last characters of a string as long as it may be, then the quote."""
    rules = []
    for left in range(most, 0, -1):
        steps = _steps("ab", left, end=" q")
        if is_nonempty and left == most:
            rules.append(f"first ::= {' | '.join(steps + _longer('s', left))}")
        rules.append(f"a{left} ::= {' | '.join(['q', *steps, *_longer('s', left)])}")
        rules.append(f"b{left} ::= {' | '.join(_behind(steps) + _longer('t', left))}")
    return rules


def _blocks(num_blocks: int, *, is_nonempty: bool) -> list[str]:
    """c and d (behind an opener): a whole block; e and f: a part of one, then the quote; "ended": blocks, then a part.

    The last opener of a block takes its follower in, or one more opener with its own. Behind any block the longest
    reach is left.
    """
    reach = _REACHES[0]
    rules = [f"d0 ::= w | x | o d00 | t{reach}", f"d00 ::= w | x | t{reach}l | t{reach}r | t{reach}x"]
    for left in range(_BLOCK, 0, -1):
        whole = _steps("cd", left, end="", exceeds=True) + ["o d0"] * (left == 1)
        part = _steps("ef", left, end=None)
        rules += [
            f"c{left} ::= {' | '.join([*whole, f's{reach}'])}",
            f"d{left} ::= {' | '.join([*_behind(whole), f't{reach}'])}",
            f"e{left} ::= {' | '.join(['q', *part])}",
            f"f{left} ::= {' | '.join(_behind(part) or ['never'])}",
        ]
    rest = f"e{_BLOCK}"
    ended = [f"{blocks} {rest}" for blocks in _up_to(num_blocks - 1 - is_nonempty)]
    if is_nonempty:
        ended = [f"c{_BLOCK} {way}" for way in ended if num_blocks > 1] + _steps("ef", _BLOCK, end=None)
    return [f"ended ::= {' | '.join(ended)}", f"r ::= {' '.join([f'c{_BLOCK}'] * _RUN)}", *rules]


def _exactly(num_blocks: int) -> list[str]:
    runs, rest = divmod(num_blocks, _RUN)
    return [f"r{{{runs}}}"] * (runs > 0) + [f"c{_BLOCK}{{{rest}}}"] * (rest > 0)


def _up_to(num_blocks: int) -> list[str]:
    """Ways to write 0 to ``num_blocks`` blocks; none if that is less than 0."""
    runs, rest = divmod(num_blocks, _RUN)
    if num_blocks < 0:
        return []
    last = " ".join([*_exactly(runs * _RUN), f"c{_BLOCK}{{0,{rest}}}" if rest else ""])
    if not runs:
        return [last]
    return [" ".join([f"r{{0,{runs - 1}}}" if runs > 1 else "", f"c{_BLOCK}{{0,{_RUN - 1}}}"]), last]
