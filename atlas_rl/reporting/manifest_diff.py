"""Two starts of runs side by side: what differs, what merely names them, and what one of them did not record."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from atlas_rl.reporting.manifest import Manifest, kept, leaves

GROUPS: Mapping[str, str] = {
    "config": "config",
    "git": "git",
    "packages": "versions",
    "python": "versions",
    "platform": "versions",
    "model_fingerprints": "models",
    "data_files": "data",
    "potential": "potential",
    "grammar_hashes": "grammar",
    "protocol_token_ids": "protocol tokens",
    "machine": "machine",
    "environment": "environment",
}
"""Heading by field of the manifest, in the order in which they are shown."""

IDENTITY = (
    "run_id",
    "attempt_id",
    "created_at",
    "started_at",
    "command",
    "working_directory",
    "machine.hostname",
    "config.atlas.run.id",
    "config.atlas.run.attempt_id",
    "config.atlas.run.resume",
    "config.atlas.run.artifacts_dir",
    "config.atlas.run.logs_dir",
    "config.trainer.experiment_name",
    "config.trainer.default_local_dir",
    "environment.SLURM_JOB_ID",
    "environment.SLURM_JOB_NAME",
    "environment.SLURM_JOB_NODELIST",
)
"""Keys that say which run it is, when and where, not what it does; each covers what is below it."""

_LISTED = frozenset({"git", "packages", "machine", "potential"})
"""Fields whose keys the program chooses: one that a manifest lacks was not recorded, for the others it is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One leaf that two manifests do not share."""

    key: str
    """Dotted, from the manifest's root."""
    values: Mapping[str, Any]
    """JSON values by side, ``a`` and ``b``; a side where the key is absent is left out."""

    @property
    def group(self) -> str:
        """Its heading."""
        return GROUPS.get(self.key.partition(".")[0], "identity")

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {"key": self.key, **self.values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two manifests do not share."""

    differences: tuple[Difference, ...]
    """By group, in it by key."""
    identity: tuple[Difference, ...]
    """What differs of IDENTITY, in its order; no difference between what the runs do."""
    unrecorded: Mapping[str, str] = field(default_factory=dict)
    """Key to the side, ``a`` or ``b``, whose manifest is too old to say; not compared."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs that was recorded on both sides and not ignored."""
        return not self.differences

    def by_group(self) -> dict[str, list[Difference]]:
        """The differences under their headings."""
        headings = dict.fromkeys(GROUPS.values())
        grouped = {group: [one for one in self.differences if one.group == group] for group in headings}
        return {group: members for group, members in grouped.items() if members}

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "equal": self.is_equal,
            "differences": {name: [one.plain() for one in group] for name, group in self.by_group().items()},
            "identity": [one.plain() for one in self.identity],
            "unrecorded": dict(self.unrecorded),
        }


def compare(first: Manifest, second: Manifest, ignored_keys: Collection[str] = ()) -> Comparison:
    """Compare two manifests leaf by leaf; numbers are equal only if they are written alike.

    Args:
        first: Side ``a``; as read from its file, which tells what was not recorded from what is not there.
        second: Side ``b``.
        ignored_keys: Dotted keys to leave out, each with all below it; a key of the configuration needs no ``config.``.
    """
    ignored = {*ignored_keys, *(f"config.{key}" for key in ignored_keys)}
    plain = {name: _recorded(one) for name, one in (("a", first), ("b", second))}
    flat = {name: kept(leaves(one), ignored) for name, one in plain.items()}
    differences, unrecorded = [], {}
    for key in sorted(flat["a"].keys() | flat["b"].keys()):
        values = {name: side[key] for name, side in flat.items() if key in side}
        if len(values) == 2 and json.dumps(values["a"]) == json.dumps(values["b"]):
            continue
        missing = next((name for name in plain if name not in values), None)
        if missing is not None and {} in values.values() and any(_below(other, key) for other in flat[missing]):
            continue  # an empty mapping on one side: what the other side has in it is told leaf by leaf
        silent = None if missing is None else _unrecorded(plain[missing], key)
        if missing is not None and silent is not None:
            unrecorded[silent] = missing
        else:
            differences.append(Difference(key=key, values=values))
    own = {one.key for one in differences} - kept({one.key: None for one in differences}, IDENTITY).keys()
    order = list(GROUPS)
    return Comparison(
        differences=tuple(
            sorted(
                (one for one in differences if one.key not in own),
                key=lambda one: (order.index(one.key.partition(".")[0]), one.key),
            )
        ),
        identity=tuple(one for key in IDENTITY for one in differences if one.key == key or _below(one.key, key)),
        unrecorded=unrecorded,
    )


def _recorded(manifest: Manifest) -> dict[str, Any]:
    """What the manifest's file holds: no defaults for what it does not."""
    plain: dict[str, Any] = json.loads(json.dumps(manifest.model_dump(exclude_unset=True)))
    return plain


def _unrecorded(side: Mapping[str, Any], key: str) -> str | None:
    """The part of ``key`` that ``side`` does not record; None: it says that there is no such thing."""
    top = key.partition(".")[0]
    if top not in side:
        return top
    return key if top in _LISTED and key != top and isinstance(side[top], dict) else None


def _below(key: str, above: str) -> bool:
    return key.startswith(f"{above}.")
