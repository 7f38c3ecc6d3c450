"""Fields of untyped rows, taken one by one so that a wrong one can be named: where, which, the value, the remedy."""

import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from atlas_rl.errors import AtlasError, DataError

REBUILD = "rebuild the dataset"
"""The remedy for a file that another version or program wrote."""


def refuse(where: str, name: str, value: Any, remedy: str) -> NoReturn:
    """Raise the DataError of one field: where it is, what was seen and what to do.

    Raises:
        DataError: always.
    """
    seen = repr(value)
    raise DataError(f"{where}: {name}={seen if len(seen) <= 200 else seen[:200] + '...'}: {remedy}")


def field(where: str, fields: Mapping[str, Any], name: str) -> Any:
    """The value of a field that must be there, numpy scalars and arrays as plain Python.

    Raises:
        DataError: it is missing or null.
    """
    value = fields.get(name)
    if value is None:
        raise DataError(f"{where}: field {name!r} is missing, there are {sorted(fields)}; {REBUILD}")
    # A numpy scalar or array, should verl have made one.
    return value.tolist() if hasattr(value, "tolist") else value


def as_mapping(where: str, name: str, value: Any) -> Mapping[str, Any]:
    """The value as a mapping.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(value, Mapping):
        refuse(where, name, value, f"must be a struct; {REBUILD}")
    return value


def as_list(where: str, name: str, value: Any) -> list[Any]:
    """The value as a list.

    Raises:
        DataError: it is neither list nor tuple.
    """
    if not isinstance(value, (list, tuple)):
        refuse(where, name, value, f"must be a list; {REBUILD}")
    return list(value)


def text_field(where: str, fields: Mapping[str, Any], name: str) -> str:
    """A field that must be a string.

    Raises:
        DataError: it is missing or something else.
    """
    value = field(where, fields, name)
    if not isinstance(value, str):
        refuse(where, name, value, "must be a string")
    return value


def flag_field(where: str, fields: Mapping[str, Any], name: str) -> bool:
    """A field that must be a bool.

    Raises:
        DataError: it is missing or something else; 0 and 1 are not taken for one.
    """
    value = field(where, fields, name)
    if not isinstance(value, bool):
        refuse(where, name, value, "must be true or false")
    return value


def count_field(where: str, fields: Mapping[str, Any], name: str) -> int:
    """A field that must be a whole number.

    Raises:
        DataError: it is missing or something else.
    """
    value = field(where, fields, name)
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(where, name, value, "must be a whole number")
    return value


def money_field(where: str, fields: Mapping[str, Any], name: str) -> Decimal:
    """A field that must be an amount of at least 0, written as a decimal string so that it is exact.

    Raises:
        DataError: it is missing, no string, no number, not finite or negative.
    """
    value = field(where, fields, name)
    remedy = "must be a decimal number of at least 0, as a string such as '0.25'"
    if not isinstance(value, str):
        refuse(where, name, value, remedy)
    try:
        money = Decimal(value)
    except InvalidOperation:
        refuse(where, name, value, remedy)
    if not money.is_finite() or money < 0:
        refuse(where, name, value, remedy)
    return money


def json_object(where: str, name: str, text: str) -> dict[str, Any]:
    """The JSON object that a field's text holds.

    Raises:
        DataError: it is no JSON object, or holds NaN or Infinity.
    """

    def no_constant(constant: str) -> NoReturn:
        raise DataError(f"{where}: {name}={text[:200]!r}: holds {constant}, which is no JSON")

    try:
        facts = json.loads(text, parse_constant=no_constant)
    except AtlasError:
        raise
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        refuse(where, name, text, "must be a JSON object")
    return facts
