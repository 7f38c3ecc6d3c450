"""Records of older versions: each is brought up one version at a time, then read like a new one.

A new version is a new number, a step from the one before it in this table, and a stored file of the old one among
the tests. What the old code did not record is written as unknown, never guessed.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from atlas_rl.errors import RecordError
from atlas_rl.records.episode import SCHEMA_VERSION, Episode
from atlas_rl.records.json_text import from_json, loads, one_line
from atlas_rl.records.trajectory import FILE_VERSION, Trajectory, TrajectoryHeader

Fields = dict[str, Any]
Step = Callable[[Fields], Fields]
Versioned = TypeVar("Versioned", TrajectoryHeader, Trajectory, Episode)


def _unknown_forced(episode: Fields) -> Fields:
    """Version 1 gained ``Generation.forced`` without a new number: where it is missing, nobody had looked."""
    generations = [{"forced": None, **generation} for generation in episode["generations"]]
    return {**episode, "generations": generations}


EPISODE_STEPS: Mapping[int, Step] = {1: _unknown_forced}
"""By ``schema_version``: what makes its fields those of the next one."""
TRAJECTORY_STEPS: Mapping[int, Step] = {}
"""By ``file_version``, the same for the file around an episode."""


def read_record(kind: type[Versioned], text: bytes) -> Versioned:
    """Read a trajectory, its header or an episode of any known version from JSON.

    Raises:
        RecordError: the text is no such record, or one of a newer version.
    """
    try:
        return from_json(kind, text)
    except RecordError as error:
        # Trying the newest version first costs new records nothing; only this path looks at the numbers.
        try:
            fields = loads(text)
        except RecordError:
            raise error from None
        migrated = migrate(kind, fields)
        if migrated is fields or migrated == fields:
            raise
        return _validate(kind, migrated)


def read_fields(kind: type[Versioned], fields: Fields) -> Versioned:
    """The same from fields that were parsed already.

    Raises:
        RecordError: they are no such record, or one of a newer version.
    """
    return _validate(kind, migrate(kind, fields))


def migrate(kind: type[Versioned], fields: Any) -> Any:
    """The fields of the newest version; new objects where something changes.

    Raises:
        RecordError: a version is newer than this code, or older than its table.
    """
    if kind is Episode:
        return _climb(fields, "schema_version", SCHEMA_VERSION, EPISODE_STEPS)
    fields = _climb(fields, "file_version", FILE_VERSION, TRAJECTORY_STEPS)
    if not isinstance(fields, dict) or "episode" not in fields:
        return fields
    return {**fields, "episode": migrate(Episode, fields["episode"])}


def _climb(fields: Any, name: str, newest: int, steps: Mapping[int, Step]) -> Any:
    """Take every step from the version of ``fields`` to ``newest``; fields without a version stay for the validator."""
    version = fields.get(name) if isinstance(fields, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        return fields
    if version > newest:
        raise RecordError(
            f"{name}={version} is newer than {newest}, the newest that is read here; read it with the version of "
            "atlas_rl that wrote it"
        )
    while version < newest:
        if version not in steps:
            raise RecordError(f"{name}={version} is no version that was ever written; restore the record from a copy")
        try:
            fields = steps[version](fields)
        except (KeyError, TypeError) as error:
            raise RecordError(f"{name}={version}: {error!r} keeps it from version {version + 1}") from error
        version += 1
        fields = {**fields, name: version}
    return fields


def _validate(kind: type[Versioned], fields: Any) -> Versioned:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise RecordError(f"not a valid {kind.__name__}: {one_line(error)}") from error
