"""A run's manifests, and two of them side by side, as tables of text."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from atlas_rl.cli.saved_steps import SavedSteps
from atlas_rl.cli.shipped_defaults import ABSENT, changed_keys
from atlas_rl.errors import ConfigError
from atlas_rl.reporting.manifest import Manifest, leaves
from atlas_rl.reporting.manifest_diff import Comparison, Difference
from atlas_rl.reporting.run_overview import RunOverview

_LEAST_WIDTH = 160
"""Columns where the output is no terminal: a digest and its key fit into one line."""


def print_overview(overview: RunOverview, steps: SavedSteps, *, all_keys: bool) -> None:
    """Print one run.

    Args:
        overview: What its folder says.
        steps: Its checkpoints.
        all_keys: Every key of the configuration, not only those that differ from what is shipped.
    """
    console = _console()
    for title, rows in _sections(overview.attempts[0]):
        _print(console, title, rows)
    _print_config(console, overview.attempts[0], all_keys=all_keys)
    _print_attempts(console, overview)
    _print(console, "progress", _progress(overview, steps))


def print_comparison(found: Comparison) -> None:
    """Print what two runs do not share; the last line has the counts."""
    console = _console()
    _print_differences(console, "identity (no difference)", found.identity)
    for group, differences in found.by_group().items():
        _print_differences(console, group, differences)
    unrecorded = [(key, f"by {side}") for key, side in found.unrecorded.items()]
    _print(console, "not recorded, so not compared", unrecorded)
    print(f"diff: differences={len(found.differences)} unrecorded={len(unrecorded)}")


def _console() -> Console:
    """Text as it is: digests and lists are no markup."""
    plain = Console(markup=False, highlight=False, emoji=False)
    return plain if plain.is_terminal else Console(markup=False, highlight=False, emoji=False, width=_LEAST_WIDTH)


def _print_table(console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A heading, which may be wider than its table, and the table below it; nothing if there are no rows."""
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        console.print(title, style="bold")
        console.print(table)
        console.print()


def _print(console: Console, title: str, rows: Iterable[tuple[str, str]]) -> None:
    _print_table(console, title, ("", ""), rows)


def _print_differences(console: Console, title: str, differences: Iterable[Difference]) -> None:
    rows = ([one.key, *(_value(one.values.get(side, ABSENT)) for side in ("a", "b"))] for one in differences)
    _print_table(console, title, ("key", "a", "b"), rows)


def _print_config(console: Console, manifest: Manifest, *, all_keys: bool) -> None:
    if all_keys:
        _print(console, "config", ((key, _value(leaf)) for key, leaf in sorted(leaves(manifest.config).items())))
        return
    try:
        changed = changed_keys(manifest.config)
    except ConfigError as error:
        console.print(f"config: {error}; --config prints every key\n")
        return
    title = "config, where it differs from configs/train.yaml of this checkout"
    rows = ([key, *map(_value, pair)] for key, pair in changed.items())
    _print_table(console, title, ("key", "default", "run"), rows)


def _print_attempts(console: Console, overview: RunOverview) -> None:
    changes: list[str] = ["", *(_changes(one.differences) for one in overview.changes)]
    rows = (
        (
            str(manifest.attempt_id),
            manifest.created_at,
            "not recorded" if manifest.machine is None else manifest.machine.hostname,
            changed,
        )
        for manifest, changed in zip(overview.attempts, changes, strict=True)
    )
    _print_table(console, "attempts", ("attempt", "created", "host", "changed since the attempt before"), rows)


def _changes(differences: Iterable[Difference]) -> str:
    lines = [
        f"{one.key}: {_value(one.values.get('a', ABSENT))} -> {_value(one.values.get('b', ABSENT))}"
        for one in differences
    ]
    return "\n".join(lines) or "nothing"


def _sections(manifest: Manifest) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    yield (
        "run",
        [
            ("run_id", manifest.run_id),
            ("created", manifest.created_at),
            ("process started", manifest.started_at or "not recorded"),
            ("command", " ".join(manifest.command) or "not recorded"),
            ("working directory", manifest.working_directory or "not recorded"),
        ],
    )
    yield "machine", _machine(manifest)
    yield "environment", list(manifest.environment.items())
    versions = [("python", manifest.python), ("platform", manifest.platform)]
    yield "versions", versions + [(name, one) for name, one in manifest.packages.items() if one is not None]
    yield "git", _git(manifest)
    yield "data", [(path, f"{one.num_rows} rows, sha256 {one.sha256}") for path, one in manifest.data_files.items()]
    yield "models", [(key, f"sha256 {digest}") for key, digest in manifest.model_fingerprints.items()]
    yield "potential", [(key, _value(leaf)) for key, leaf in leaves(manifest.potential.model_dump()).items()]
    yield "grammar", [(name, f"sha256 {digest}") for name, digest in manifest.grammar_hashes.items()]
    yield "protocol tokens", [(name, _value(one)) for name, one in manifest.protocol_token_ids.items()]


def _machine(manifest: Manifest) -> list[tuple[str, str]]:
    machine = manifest.machine
    if machine is None:
        return [("host", "not recorded")]
    rows = [
        ("host", machine.hostname),
        ("cpus", f"{machine.num_usable_cpus} of {machine.num_cpus}, {machine.cpu}"),
        ("memory", f"{machine.memory_mib} MiB"),
    ]
    if machine.cards is None:
        return [*rows, ("cards", "nvidia-smi did not answer")]
    cards = [(f"card {one.index}", f"{one.name}, {one.memory_mib} MiB, driver {one.driver}") for one in machine.cards]
    return rows + (cards or [("cards", "none")])


def _git(manifest: Manifest) -> list[tuple[str, str]]:
    git = manifest.git
    if git is None:
        return [("commit", "none: the code was no tracked part of a checkout")]
    changes = f"yes, sha256 {git.changes_sha256 or 'not recorded'}" if git.dirty else "none"
    return [("commit", git.commit), ("changes beside it", changes)]


def _progress(overview: RunOverview, steps: SavedSteps) -> Iterable[tuple[str, str]]:
    last = "none logged" if overview.last_step is None else f"{overview.last_step}, at {overview.last_time}"
    yield "last step", last
    for partition, rows in overview.trajectories.items():
        yield f"{partition} trajectories", str(rows)
    yield "checkpoints", str(steps.folder)
    yield "saved steps", ", ".join(map(str, steps.steps)) or "none"
    yield "latest", "none" if steps.latest is None else str(steps.latest)
    if steps.anchors:
        yield "anchors", ", ".join(map(str, steps.anchors))
    if steps.steps:
        yield "bytes on disk", str(steps.num_bytes)
    for line in overview.torn:
        yield "torn", line


def _value(value: Any) -> str:
    if value is ABSENT:
        return "absent"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value)
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
