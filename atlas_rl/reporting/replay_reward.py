"""Which reward a replay scores by: the run's own, with or without keys that take the place of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas_rl.errors import ConfigError, RecordError
from atlas_rl.reporting.manifest import RUN_FILE, Manifest, read_manifest
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.potential_sources import PotentialSources
from atlas_rl.rewards.potentials import Potential

_ONE_WEIGHT = "potentials."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReward:
    """The reward of a replay."""

    reward: RewardConfig
    potential: Potential
    run_id: str | None
    """Run of the folder; None: there is no run.json, so rows may be of any."""
    grader_seconds: float | None
    """Wall time that the run gave a grader for one verdict; None: not said."""


def find_manifest(folder: Path) -> Manifest | None:
    """The manifest of the run that ``folder`` is, or lies in; None if there is none.

    Raises:
        RecordError: run.json is no manifest.
    """
    for place in (folder.resolve(), *folder.resolve().parents):
        if (place / RUN_FILE).is_file():
            return read_manifest(place / RUN_FILE)
    return None


def reward_of_run(
    folder: Path, changes: Mapping[str, Any] | None = None, potential_files: Mapping[str, str] | None = None
) -> RunReward:
    """The reward to score ``folder`` by.

    Args:
        folder: artifacts/RUN, a folder in it, or any other store.
        changes: keys of ``RewardConfig`` that take the place of the run's own, ``potentials.NAME`` for one weight;
            None: exactly the run's own reward.
        potential_files: path of a table by the name of the part, beside those of the run.

    Raises:
        ConfigError: there is no run.json and nothing given in its place, or a key cannot be used.
        RecordError: run.json says no reward.
        DataError: the file of a potential is missing, or not the one that the run was bound to.
    """
    manifest = find_manifest(folder)
    if manifest is None and changes is None:
        raise ConfigError(
            f"{folder}: no {RUN_FILE} there or above it, so its reward is unknown; give --reward KEY=VALUE"
        )
    atlas = {} if manifest is None else _atlas(manifest)
    reward = RewardConfig.from_mapping(_changed(atlas.get("reward", {}), changes or {}))
    runtime = atlas.get("runtime")
    return RunReward(
        reward=reward,
        potential=potential_of_run(atlas, reward, potential_files or {}, is_own=changes is None),
        run_id=None if manifest is None else manifest.run_id,
        grader_seconds=runtime.get("grader_timeout_seconds") if isinstance(runtime, Mapping) else None,
    )


def potential_of_run(
    atlas: Mapping[str, Any], reward: RewardConfig, files: Mapping[str, str], *, is_own: bool
) -> Potential:
    """The potential that a reward names: its parts from the run's binding, or from a file given in its place.

    Args:
        atlas: the node of run.json; a run that is bound to a file has its sha256 there.
        reward: names and weights of the parts.
        files: path of a table by the name of its part.
        is_own: whether a given file must still be the one that the run was bound to, which has only moved.

    Raises:
        ConfigError: a part has no source.
        DataError: the file of a part is missing, or is another than the run was bound to.
    """
    weighed = {name for name, _ in reward.potentials}
    unweighed = sorted(set(files) - weighed)
    if unweighed:
        raise ConfigError(
            f"--potential {unweighed[0]}={files[unweighed[0]]} has no weight; add --reward "
            f"potentials.{unweighed[0]}=WEIGHT"
        )
    sources = {name: source for name, source in (atlas.get("potentials") or {}).items() if name in weighed}
    sources |= {name: {**(sources.get(name, {}) if is_own else {}), "path": path} for name, path in files.items()}
    return PotentialSources.from_mapping(sources).potential(reward)


def _changed(own: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    plain = {**own, **{key: value for key, value in changes.items() if not key.startswith(_ONE_WEIGHT)}}
    weights = {key.removeprefix(_ONE_WEIGHT): value for key, value in changes.items() if key.startswith(_ONE_WEIGHT)}
    if weights:
        both = {**(plain.get("potentials") or {}), **weights}
        plain["potentials"] = {name: weight for name, weight in both.items() if weight is not None}
    return plain


def _atlas(manifest: Manifest) -> Mapping[str, Any]:
    atlas = manifest.config.get("atlas")
    if not isinstance(atlas, Mapping) or not isinstance(atlas.get("reward"), Mapping):
        raise RecordError(
            f"{RUN_FILE} of {manifest.run_id!r}: atlas.reward is not there; the file is of another version"
        )
    return atlas
