"""Where the named parts of a potential come from: ``atlas.potentials``, beside the weights in ``reward.potentials``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from atlas_rl.errors import ConfigError, DataError
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.potential_table import PotentialTable, read_table
from atlas_rl.rewards.potentials import BUILT_IN, Potential, compose
from atlas_rl.rewards.recorded_potential import RecordedPotential


class SourceKind(StrEnum):
    """What a part is."""

    TABLE = "table"
    """A frozen table: a parquet file of ``atlas-rl potential build``."""
    RECORDED = "recorded"
    """Values that each trajectory brings along in ``extra.potentials``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PotentialSource:
    """One part."""

    kind: SourceKind = SourceKind.TABLE
    path: str | None = None
    """The file of a table, from the folder that the program runs in."""
    sha256: str | None = None
    """Of the bytes of that file; a run sets it when it opens, and any other file is refused from then on."""


@dataclass(frozen=True, slots=True)
class PotentialSources:
    """The node ``atlas.potentials``.

    Raises:
        ConfigError: a part lacks its file, or has what its kind does not use.
    """

    parts: tuple[tuple[str, PotentialSource], ...] = ()

    def __post_init__(self) -> None:
        """Check every part."""
        for name, source in self.parts:
            if name in BUILT_IN:
                raise ConfigError(f"atlas.potentials.{name}: {name} is built in and reads nothing; leave it out")
            if source.kind is SourceKind.TABLE and not source.path:
                raise ConfigError(f"atlas.potentials.{name}.path is not set; give the table that holds its values")
            if source.kind is SourceKind.RECORDED and (source.path or source.sha256):
                raise ConfigError(
                    f"atlas.potentials.{name}.path={source.path!r} is given beside kind=recorded, which reads no file; "
                    "leave path and sha256 out"
                )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "PotentialSources":
        """Read plain values: part names to mappings of kind, path and sha256.

        Raises:
            ConfigError: an unknown key, or a value that cannot be used.
        """
        known = [field.name for field in fields(PotentialSource)]
        parts = []
        for name, given in values.items():
            where = f"atlas.potentials.{name}"
            if not isinstance(given, Mapping):
                raise ConfigError(f"{where} must be a mapping, got {given!r}; give {where}.path=FILE.parquet")
            for key, value in given.items():
                if key not in known:
                    raise ConfigError(f"{where}.{key} is no key of a potential; use one of: {', '.join(known)}")
                if value is not None and not isinstance(value, str):
                    raise ConfigError(f"{where}.{key} must be text or null, got {value!r}")
            kind = given.get("kind") or SourceKind.TABLE
            if kind not in list(SourceKind):
                raise ConfigError(f"{where}.kind={kind!r} is not known; use one of: {', '.join(SourceKind)}")
            source = PotentialSource(kind=SourceKind(kind), path=given.get("path"), sha256=given.get("sha256"))
            parts.append((str(name), source))
        return cls(tuple(parts))

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values from which ``from_mapping`` makes equal sources."""
        return {
            name: {"kind": str(source.kind), "path": source.path, "sha256": source.sha256}
            for name, source in self.parts
        }

    def bound(self) -> "PotentialSources":
        """The same with the sha256 of every file as it is now.

        Raises:
            DataError: as ``tables``.
        """
        digests = {name: table.sha256 for name, table in self.tables().items()}
        return PotentialSources(tuple((name, replace(source, sha256=digests.get(name))) for name, source in self.parts))

    def seen_from(self, folder: Path) -> "PotentialSources":
        """The same with each path that leads nowhere taken from ``folder``."""
        return PotentialSources(
            tuple(
                (name, replace(source, path=str(folder / source.path)))
                if source.path is not None and not Path(source.path).exists()
                else (name, source)
                for name, source in self.parts
            )
        )

    def tables(self) -> dict[str, PotentialTable]:
        """Read every table, by the name of its part.

        Raises:
            DataError: a file is missing, is no table, or is another than its sha256 says.
        """
        return {name: _table(name, source) for name, source in self.parts if source.kind is SourceKind.TABLE}

    def potential(self, reward: RewardConfig) -> Potential:
        """The weighted sum that a reward names.

        Raises:
            ConfigError: the reward names a part that has no source, or does not name one that has.
            DataError: as ``tables``.
        """
        weights = dict(reward.potentials)
        for name, _ in self.parts:
            if name not in weights:
                raise ConfigError(
                    f"atlas.potentials.{name} is given, but reward.potentials={list(weights)} does not weigh it; add "
                    f"atlas.reward.potentials.{name}=WEIGHT, or leave it out"
                )
        recorded = {name: RecordedPotential(name) for name, source in self.parts if source.kind is SourceKind.RECORDED}
        return compose(reward.potentials, {**BUILT_IN, **recorded, **self.tables()})


def potential_of(atlas: Mapping[str, Any], started_in: str | None = None) -> Potential:
    """The potential of a run, from the ``atlas`` node of its configuration or of its run.json.

    Args:
        atlas: The node.
        started_in: The folder that relative paths start from where they lead nowhere from here.

    Raises:
        ConfigError: the node cannot be used.
        DataError: a file is missing, is no table, or is not the one that the run was started with.
    """
    reward = RewardConfig.from_mapping(atlas["reward"])
    sources = PotentialSources.from_mapping(atlas.get("potentials") or {})
    if started_in is not None:
        sources = sources.seen_from(Path(started_in))
    return sources.potential(reward)


def _table(name: str, source: PotentialSource) -> PotentialTable:
    assert source.path is not None
    where = f"atlas.potentials.{name}.path"
    try:
        table = read_table(source.path)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    if source.sha256 not in (None, table.sha256):
        raise DataError(
            f"{where}={source.path}: sha256 {table.sha256}, but the run is bound to {source.sha256}; restore the file"
        )
    return table
