r"""A small regular language for string arguments whose every word is safe inside a JSON string.

``^...$`` around literals, classes without negation, ``\d``, groups, ``|`` and the bounded repeats ``?``, ``{m}`` and
``{m,n}``. It is what Python's ``re`` and XGrammar read alike, and it has a longest word.
"""

from dataclasses import dataclass

from atlas_rl.errors import GrammarError

_PRINTABLE = frozenset(map(chr, range(0x20, 0x7F)))
_MAX_REPEAT = 512
"""XGrammar compiles a wide class once a repeat, some 10 ms each at 151,936 tokens; maxLength has no such price."""

_MAX_CHARS = 4096
"""Largest longest word."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a pattern."""

    regex: str
    """The pattern for XGrammar, without anchors."""
    shortest: str
    max_chars: int
    """Characters of a longest word; all are ASCII."""


def read_pattern(pattern: str, forbidden: frozenset[str], where: str) -> Words:
    """Read a JSON Schema ``pattern``.

    Args:
        pattern: The regular expression, anchored at both ends.
        forbidden: Characters that no word may hold (a quote, a backslash, openers of control tokens).
        where: Which argument it belongs to, for messages.

    Raises:
        GrammarError: the pattern leaves the language above, or a word may hold a forbidden character.
    """
    return _Reader(pattern, forbidden, where).read()


class _Reader:
    def __init__(self, pattern: str, forbidden: frozenset[str], where: str) -> None:
        self._pattern, self._forbidden, self._where = pattern, forbidden, where
        self._at = 1

    def _fail(self, what: str) -> GrammarError:
        return GrammarError(f"{self._where} {self._pattern!r}: {what} at character {self._at}")

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise self._fail("ends too early; close every group and class and end with '$'")
        self._at += 1
        return char

    def read(self) -> Words:
        if not self._pattern.startswith("^") or not self._pattern.endswith("$"):
            raise self._fail("must start with '^' and end with '$', as the grammar enforces whole words")
        words = self._choice(depth=0)
        if self._take() != "$" or self._peek():
            raise self._fail("has something after its end; put alternatives into a group: ^(a|b)$")
        if words.max_chars > _MAX_CHARS:
            raise self._fail(f"has words of {words.max_chars} characters, more than {_MAX_CHARS}; lower its repeats")
        return words

    def _choice(self, depth: int) -> Words:
        options = [self._chain()]
        while self._peek() == "|":
            if depth == 0:
                raise self._fail("alternatives outside a group escape the anchors; write ^(a|b)$")
            self._at += 1
            options.append(self._chain())
        shortest = min((option.shortest for option in options), key=len)
        return Words("|".join(o.regex for o in options), shortest, max(o.max_chars for o in options))

    def _chain(self) -> Words:
        regex, shortest, max_chars = "", "", 0
        while self._peek() not in ("", "|", ")", "$"):
            part = self._repeated()
            regex, shortest, max_chars = regex + part.regex, shortest + part.shortest, max_chars + part.max_chars
        return Words(regex, shortest, max_chars)

    def _repeated(self) -> Words:
        atom = self._atom()
        if self._peek() not in ("?", "{", "*", "+"):
            return atom
        low, high = self._bounds()
        if self._peek() in ("?", "{", "*", "+"):
            raise self._fail("repeats a repeat; use a group")
        count = f"{{{low},{high}}}" if low != high else f"{{{low}}}"
        return Words(atom.regex + ("?" if (low, high) == (0, 1) else count), atom.shortest * low, atom.max_chars * high)

    def _bounds(self) -> tuple[int, int]:
        mark = self._take()
        if mark == "?":
            return 0, 1
        if mark in "*+":
            raise self._fail(f"{mark!r} has no upper bound, so a policy can loop in it; write {{m,n}}")
        body, closed, _ = self._pattern[self._at :].partition("}")
        low, comma, high = body.partition(",")
        if not closed or not low.isdecimal() or not body.isascii() or (comma and not high.isdecimal()):
            raise self._fail(f"repeat {{{body}}} is not {{m}} or {{m,n}}")
        self._at += len(body) + 1
        bounds = int(low), int(high if comma else low)
        if bounds[0] > bounds[1] or bounds[1] > _MAX_REPEAT:
            raise self._fail(f"repeat {{{body}}} must ascend and end at {_MAX_REPEAT} or less; maxLength can be longer")
        return bounds

    def _atom(self) -> Words:
        char = self._take()
        if char == "(":
            if self._pattern.startswith("?:", self._at):
                self._at += 2
            elif self._peek() == "?":
                raise self._fail("only plain and (?:...) groups are read alike by both engines")
            inner = self._choice(depth=1)
            if self._take() != ")":
                raise self._fail("group is not closed")
            return Words(f"({inner.regex})", inner.shortest, inner.max_chars)
        if char == "[":
            return self._class()
        if char == "\\":
            return self._set(self._escaped())
        if char in ".^]{}?*+":
            raise self._fail(f"{char!r} is not supported here; name the characters in a class")
        return self._set({char})

    def _escaped(self) -> set[str]:
        char = self._take()
        if char == "d":
            return set("0123456789")
        if char.isalnum():
            raise self._fail(f"escape \\{char} is not supported; name the characters in a class")
        return {char}

    def _class(self) -> Words:
        chars: set[str] = set()
        if self._peek() == "^":
            raise self._fail("negated classes hold characters that JSON must escape; name the characters")
        while (char := self._take()) != "]" or not chars:
            first = self._escaped() if char == "\\" else {char}
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]" and len(first) == 1:
                self._at += 1
                last = self._take()
                stop = self._escaped() if last == "\\" else {last}
                low, high = ord(min(first)), ord(min(stop))
                if low > high:
                    raise self._fail(f"range {chr(low)}-{chr(high)} descends")
                first = {chr(code) for code in range(low, high + 1)}
            chars |= first
        return self._set(chars)

    def _set(self, chars: set[str]) -> Words:
        bad = sorted((chars - _PRINTABLE) | (chars & self._forbidden))
        if bad:
            raise self._fail(f"may match {bad[0]!r}, which needs an escape in JSON or opens a control token,")
        regex = _escape(min(chars)) if len(chars) == 1 else f"[{_ranges(sorted(chars))}]"
        return Words(regex, min(chars), 1)


def _ranges(chars: list[str]) -> str:
    """Class body of ascending characters, with runs of four or more letters or digits as ranges."""
    runs: list[str] = []
    for char in chars:
        if runs and char.isalnum() and runs[-1].isalnum() and ord(char) == ord(runs[-1][-1]) + 1:
            runs[-1] += char
        else:
            runs.append(char)
    return "".join(f"{run[0]}-{run[-1]}" if len(run) > 3 else "".join(map(_escape, run)) for run in runs)


def _escape(char: str) -> str:
    return char if char.isalnum() or char in " ,\"'<>/_:;@!#%&=~`" else f"\\{char}"
