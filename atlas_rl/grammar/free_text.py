"""The free text of a structural tag: which tokens leave a generation's choices as they were.

While a policy writes text before its call, the legal tokens stay the same from token to token, so an engine need not
ask the matcher again. That is read off the tag here, and off nothing else: a tag of another shape has no ``FreeText``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_COUNTED = re.compile(r"root ::= ([^\n]+)\nany ::= ExcludeToken\(([0-9, ]+)\)\n")
_RUN = re.compile(r'\("" \|((?: any)+)\)')


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeText:
    """The text that a tag lets stand before its call."""

    limit: int | None
    """Most tokens of it; 0: a call must come at once, None: no bound."""
    call_begin_ids: frozenset[int]
    """The tokens that end it."""
    excluded: tuple[str, ...] = ()
    """Texts that it must not hold, however they are cut into tokens."""

    def plain(self, start_allowed: NDArray[np.bool_], token_bytes: Sequence[bytes]) -> NDArray[np.bool_]:
        """[V] True for each token of text after which the same tokens are legal as before it, up to the limit.

        Args:
            start_allowed: [V] what may open a generation.
            token_bytes: [V] bytes of each token; looked at only where texts are excluded.
        """
        plain = start_allowed.copy()
        plain[list(self.call_begin_ids)] = False
        if self.limit == 0:
            plain[:] = False
        for token_id in np.flatnonzero(plain) if self.excluded else ():
            plain[token_id] = self._is_inert(token_bytes[token_id])
        return plain

    def _is_inert(self, token: bytes) -> bool:
        """No excluded text can begin in ``token``, and no character is left unfinished by it."""
        return not any(text.encode()[0] in token for text in self.excluded) and _is_text(token)

    def is_settled(self, text: bytes) -> bool:
        """After ``text``, written since the start, the choices are those of the start again.

        So it is when no character is unfinished and no excluded text has begun at the end of it.
        """
        if not _is_text(text):
            return False
        begun = (
            excluded.encode()[:length] for excluded in self.excluded for length in range(1, len(excluded.encode()))
        )
        return not any(text.endswith(beginning) for beginning in begun)


def _is_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def free_text(structural_tag: str) -> FreeText | None:
    """Read the free text off a tag as ``grammar.tags`` writes them; None: it is none of those."""
    if not structural_tag.startswith("{"):
        return None
    form = json.loads(structural_tag).get("format", {})
    if form.get("type") != "sequence":
        begins = _call_begins(form)
        return None if begins is None else FreeText(limit=0, call_begin_ids=begins)
    if len(form["elements"]) != 2:
        return None
    text, call = form["elements"]
    begins = _call_begins(call)
    if begins is None:
        return None
    if text["type"] == "any_text" and text.get("excludes") and set(text) == {"type", "excludes"}:
        return FreeText(limit=None, call_begin_ids=begins, excluded=tuple(text["excludes"]))
    return _counted(text, begins) if text["type"] == "grammar" else None


def _call_begins(form: Mapping[str, Any]) -> frozenset[int] | None:
    """The tokens that open a call; None: it is not opened by a token."""
    tags = form["elements"] if form.get("type") == "or" else [form]
    if any(tag.get("type") != "tag" or not isinstance(tag.get("begin"), dict) for tag in tags):
        return None
    begins = [tag["begin"] for tag in tags]
    if any(begin.get("type") != "token" or not isinstance(begin.get("token"), int) for begin in begins):
        return None
    return frozenset(begin["token"] for begin in begins)


def _counted(text: Mapping[str, Any], begins: frozenset[int]) -> FreeText | None:
    """Text of 0 to ``limit`` tokens, written as optional runs of one and the same token set."""
    match = _COUNTED.fullmatch(text["grammar"])
    if match is None:
        return None
    runs = [run.group(1).count("any") for run in _RUN.finditer(match.group(1))]
    rewritten = " ".join(f'("" | {" ".join(["any"] * run)})' for run in runs)
    excluded = {int(token_id) for token_id in match.group(2).split(",")}
    limit = 0
    for run in sorted(runs):
        if run > limit + 1:
            return None  # a count between is no sum of runs
        limit += run
    if rewritten != match.group(1) or not begins <= excluded:
        return None
    return FreeText(limit=limit, call_begin_ids=begins)
