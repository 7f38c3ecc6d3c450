"""Records as JSON text that any reader accepts: ASCII, no NaN or Infinity, money as plain decimal strings.

Pydantic's own JSON writer refuses lone surrogates, which a policy can spell inside a call; here they travel as ASCII
escapes and come back as they were.
"""

import json
from collections.abc import Collection
from decimal import Decimal
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from atlas_rl.errors import RecordError
from atlas_rl.records.base import Record

R = TypeVar("R", bound=Record)

_SURROGATE_ESCAPE = b"\\ud"
"""Starts every escaped surrogate that ``to_json`` writes; pydantic's fast JSON reader refuses lone ones."""


def to_json(record: Record, *, exclude: Collection[str] = (), indent: int | None = None) -> bytes:
    """The record as one JSON object in ASCII.

    Raises:
        RecordError: a value has no JSON form (NaN, infinity, a type that JSON lacks).
    """
    fields = record.model_dump(mode="python", exclude=set(exclude))
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(
            fields, ensure_ascii=True, allow_nan=False, default=_plain_decimal, indent=indent, separators=separators
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(
            f"{type(record).__name__} has no JSON form: {error}; record finite JSON values only"
        ) from error
    return text.encode("ascii")


def from_json(kind: type[R], text: bytes) -> R:
    """Read a record back from ``to_json``'s bytes.

    Raises:
        RecordError: the bytes are not JSON or not a record of this kind.
    """
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        # Searching a whole text for escapes costs as much as half of reading it, so it is read first.
        if _SURROGATE_ESCAPE not in text:
            raise RecordError(f"not a valid {kind.__name__}: {one_line(error)}") from error
    try:
        return kind.model_validate(loads(text))
    except ValidationError as error:
        raise RecordError(f"not a valid {kind.__name__}: {one_line(error)}") from error


def loads(text: bytes) -> Any:
    """Parse JSON strictly: no NaN or Infinity literals.

    Raises:
        RecordError: the text is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error


def one_line(error: ValidationError) -> str:
    """Pydantic's first complaint as ``path: message``, with the number of the others."""
    first, *others = error.errors(include_url=False)
    path = ".".join(map(str, first["loc"])) or "record"
    more = f" (and {len(others)} more)" if others else ""
    return f"{path}: {' '.join(first['msg'].split())}{more}"


def _plain_decimal(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _refuse_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not a JSON value")
