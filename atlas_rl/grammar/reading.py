"""The reading of one generation: which call it holds, by token ids, and whether the call may run.

One rule for grammar, reader and record (docs/decisions/0007): the first call-begin token ends the free text, inside
``<think>`` or not, and the call it opens is the action. A call is never repaired and a second one never ignored.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from atlas_rl.errors import EngineError
from atlas_rl.grammar.arguments import schema_fault
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.schema import REPLACEMENT
from atlas_rl.records.episode import ProposedCall
from atlas_rl.records.vocabulary import Finish, TerminalReason
from atlas_rl.tasks.benchmark import Tool

_CUT_CHARACTER = "; its last bytes are no whole character and stand in the token ids alone"
_MAX_CHARACTER_TOKENS = 4
"""A character has four bytes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one generation says."""

    call: ProposedCall
    terminal: TerminalReason | None
    """None: the call may run; else why the episode ends here (no_call, invalid_call, multiple_calls, length)."""
    call_start: int | None
    """Place of the first call-begin token among the sampled ids; None: there is none."""
    call_end: int | None
    """One past that call's end token; None: it is not closed."""


@dataclass(frozen=True, slots=True)
class _Payload:
    name: str | None
    arguments: dict[str, Any] | None
    reason: str


def read_generation(
    token_ids: Sequence[int],
    *,
    tokens: ProtocolTokens,
    tools: Sequence[Tool],
    decode: Callable[[Sequence[int]], str],
    finish: Finish,
    turn_id: int,
) -> Reading:
    """Read the one call of a generation.

    A generation cut by its token limit exactly after a closed call holds everything that decides the action, so that
    call runs; cut any earlier it ends in ``length`` and nothing runs. A character that the cut tears apart is read as
    U+FFFD; the call's reason says so.

    Args:
        token_ids: [N] sampled ids, the stop token included if one was sampled.
        tokens: The protocol's tokens.
        tools: Tools allowed in the state.
        decode: Ids to text, control tokens spelled out.
        finish: How the generation ended.
        turn_id: For the record.

    Raises:
        EngineError: ``finish`` says eos but the last id is no stop id.
    """
    ended = bool(token_ids) and token_ids[-1] in tokens.stop_ids
    if finish is Finish.EOS and not ended:
        last = token_ids[-1] if token_ids else None
        raise EngineError(
            f"turn {turn_id}: generation finished with eos but its last token is {last}, none of the stop ids "
            f"{tokens.stop_ids}; give ProtocolTokens every id at which the engine stops"
        )
    body = list(token_ids[:-1] if ended else token_ids)
    begins = [index for index, token in enumerate(body) if token == tokens.call_begin_id]
    if not begins:
        cut = "generation was cut before any call" + _cut_mark(decode(body[-_MAX_CHARACTER_TOKENS:]))
        reason = "generation ended without a call" if ended else cut
        return _reading(turn_id, _no_call(ended), reason=reason)
    start = begins[0]
    end = next((i for i in range(start + 1, len(body)) if body[i] == tokens.call_end_id), None)
    raw_text = decode(body[start + 1 : end])
    extra, closed = len(begins) - 1, None if end is None else end + 1
    if extra:
        terminal: TerminalReason | None = TerminalReason.MULTIPLE_CALLS
        payload = _Payload(None, None, f"generation opens {1 + extra} calls; write one")
    elif end is None and not ended:
        terminal = TerminalReason.LENGTH
        payload = _Payload(None, None, "generation was cut inside its call" + _cut_mark(raw_text))
    else:
        payload = _read_payload(raw_text, tools)
        before = tokens.call_end_id in body[:start]
        frame = _frame_fault(before, end, len(body))
        if frame:
            payload = _Payload(payload.name, payload.arguments, frame)
        terminal = TerminalReason.INVALID_CALL if payload.reason else None
    return _reading(turn_id, terminal, payload.name, payload.arguments, raw_text, payload.reason, extra, start, closed)


def _cut_mark(text: str) -> str:
    """What a cut generation's reason says of its end: a decoder writes U+FFFD for the bytes of half a character."""
    return _CUT_CHARACTER if text.endswith(REPLACEMENT) else ""


def _no_call(ended: bool) -> TerminalReason:
    return TerminalReason.NO_CALL if ended else TerminalReason.LENGTH


def _frame_fault(end_before_begin: bool, end: int | None, body_length: int) -> str:
    if end_before_begin:
        return "a call-end token stands before the call"
    if end is None:
        return "generation ended inside its call"
    if end + 1 != body_length:
        return f"{body_length - end - 1} tokens follow the call; end the turn after it"
    return ""


def _reading(
    turn_id: int,
    terminal: TerminalReason | None,
    name: str | None = None,
    arguments: dict[str, Any] | None = None,
    raw_text: str = "",
    reason: str = "",
    extra_calls: int = 0,
    call_start: int | None = None,
    call_end: int | None = None,
) -> Reading:
    call = ProposedCall(
        turn_id=turn_id,
        name=name,
        arguments=arguments,
        raw_text=raw_text,
        valid=terminal is None,
        reason=reason,
        extra_calls=extra_calls,
    )
    return Reading(call=call, terminal=terminal, call_start=call_start, call_end=call_end)


def _read_payload(text: str, tools: Sequence[Tool]) -> _Payload:
    if REPLACEMENT in text:
        return _Payload(None, None, "call holds bytes that are no UTF-8")
    try:
        payload = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        return _Payload(None, None, "call nests too deeply to be read")
    except ValueError as error:
        return _Payload(None, None, f"call is not strict JSON: {' '.join(str(error).split())}")
    if not isinstance(payload, dict) or set(payload) != {"name", "arguments"}:
        keys = sorted(payload) if isinstance(payload, dict) else type(payload).__name__
        return _Payload(None, None, f"call must be an object with name and arguments, got {keys!r}")
    name, arguments = payload["name"], payload["arguments"]
    known = arguments if isinstance(arguments, dict) else None
    if not isinstance(name, str):
        return _Payload(None, known, f"name must be a string, got {type(name).__name__}")
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        return _Payload(name, known, f"tool {name!r} is not allowed here; allowed: {[tool.name for tool in tools]}")
    if known is None:
        return _Payload(name, None, f"arguments must be an object, got {type(arguments).__name__}")
    return _Payload(name, known, schema_fault(known, tool.parameters, "arguments"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} is repeated")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"number {digits[:24]} is beyond a double")
    return value
