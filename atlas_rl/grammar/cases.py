"""Cases that hold on every tokenizer: what a generation may be under a grammar, and how it is read.

docs/grammar.md says what a case may hold; the repository's are in grammar/cases.yaml.
"""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from atlas_rl.errors import ConfigError
from atlas_rl.records.base import Record

OWN = "benchmark"
"""Name of the surface that is checked, beside those of the file."""


class SurfaceSpec(Record):
    """A tool surface: explore without arguments, submit with the argument ``answer``."""

    text: int | None
    """Bound on the free text in tokens, None: unbounded."""
    answer: dict[str, Any]
    """Schema of the argument."""


class NextIds(Record):
    """What may follow a beginning, by name."""

    must_not: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    """These and no other."""


class Case(Record):
    """A generation, or the beginning of one."""

    id: str
    where: tuple[str, ...]
    """Names of surfaces."""
    write: tuple[str | dict[str, Any], ...]
    """Texts, as ordinary tokens spell them, and mappings: call, call_text, id, byte, times with text."""
    tool: Literal["explore", "submit"] = "submit"
    """Which tool it calls, if it calls one; where a state does not allow it, the call is illegal and cannot run."""
    legal: bool | None = None
    """Whether the grammar accepts it whole, where the state allows its tool and its text fits the bound."""
    reads: Literal["runs", "length", "no_call", "invalid_call", "multiple_calls"] | None = None
    """What the reader says: the call runs, or why the episode ends."""
    arguments: dict[str, Any] | None = None
    """Arguments of a call that runs; None: not looked at."""
    reason: str = ""
    """A part of the reason that the record gives."""
    next: NextIds | None = None


class RefusedSchema(Record):
    """A schema that must be refused before a run starts."""

    answer: Any
    """Schema of submit's argument."""
    say: str
    """A part of the message."""


class CaseFile(Record):
    """A file of cases."""

    surfaces: dict[str, SurfaceSpec]
    cases: tuple[Case, ...]
    refused_schemas: tuple[RefusedSchema, ...] = ()


def load_cases(path: Path) -> CaseFile:
    """Read a file of cases.

    Raises:
        ConfigError: there is none, or it does not hold cases.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give the repository's grammar/cases.yaml")
    try:
        file = CaseFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: no YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {place}: {first['msg']}, got {str(first['input'])[:60]!r}; correct it") from error
    unknown = sorted({name for case in file.cases for name in case.where} - {*file.surfaces, OWN})
    if unknown:
        raise ConfigError(f"{path}: cases name surfaces {unknown}; describe them under surfaces")
    return file
