"""Stretches of a call: what the grammar is told, a shortest text, and how long a text can get."""

from dataclasses import dataclass
from typing import Any

Format = dict[str, Any]
"""An element of an XGrammar structural tag."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a call."""

    formats: tuple[Format, ...]
    shortest: str
    max_bytes: int
    """UTF-8 bytes of its longest text, so also a bound on its tokens."""

    def __add__(self, other: "Part") -> "Part":
        """One part after the other, neighbouring constants joined."""
        formats = list(self.formats)
        for element in other.formats:
            if formats and formats[-1]["type"] == element["type"] == "const_string":
                formats[-1] = {**element, "value": formats[-1]["value"] + element["value"]}
            else:
                formats.append(element)
        return Part(tuple(formats), self.shortest + other.shortest, self.max_bytes + other.max_bytes)


def constant(text: str) -> Part:
    """A part with one text."""
    return Part(({"type": "const_string", "value": text},), text, len(text.encode()))


def one_of(texts: list[str]) -> Part:
    """A part with these texts, at least one."""
    if len(texts) == 1:
        return constant(texts[0])
    options = [{"type": "const_string", "value": text} for text in texts]
    return Part(({"type": "or", "elements": options},), min(texts, key=len), max(len(text.encode()) for text in texts))
