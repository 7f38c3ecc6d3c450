"""Arguments against their JSON Schema, every keyword of it: what a grammar accepts is not yet what a schema allows."""

import json
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    return Draft202012Validator(json.loads(schema))


def check_schema(schema: Any) -> None:
    """Check that ``schema`` is a JSON Schema.

    Raises:
        jsonschema.SchemaError: it is not.
    """
    Draft202012Validator.check_schema(schema)


def schema_fault(value: Any, schema: Any, name: str) -> str:
    """How ``value``, called ``name``, breaks ``schema``: one line that does not quote it (it can be long), or empty."""
    for error in _validator(json.dumps(schema)).iter_errors(value):
        place = "".join(f"[{key!r}]" for key in error.absolute_path)
        return f"{name}{place} must satisfy {error.validator}: {json.dumps(error.validator_value)}"
    return ""
