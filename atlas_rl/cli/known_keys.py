"""Which keys verl knows: those that its YAML lists, and the fields of the dataclasses that it builds from them.

verl itself is not imported: that takes seconds, and reads an environment that is not set yet.
"""

import ast
import difflib
import importlib.util
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from atlas_rl.errors import ConfigError

_OURS = frozenset({"atlas", "model_engine"})
"""Top nodes that verl's flat file lacks: ours, and the choice that verl's own defaults list records."""

_FREE = frozenset({"ray_kwargs.ray_init"})
"""Nodes that verl hands on as keyword arguments; its empty nodes are free too."""

_DATACLASSES = ("workers/config", "trainer/config")
"""Folders of verl with the dataclasses that ``_target_`` names; a class elsewhere is not looked into."""

_SHOWN_NAMES = 24


def verl_folder() -> Path:
    """The installed verl.

    Raises:
        ConfigError: there is none.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("verl is not installed in this environment; run scripts/setup")
    return Path(next(iter(spec.submodule_search_locations)))


def hint(parent: str, key: str, names: Collection[str]) -> str:
    """What to write instead of ``parent.key``, given the names that are known there."""
    prefix = f"{parent}." if parent else ""
    near = difflib.get_close_matches(key, names, n=1)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    shown = ", ".join(sorted(names)[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    return f"known there: {shown or 'nothing'}"


def refuse_unknown(config: Mapping[str, Any], added: Collection[str]) -> None:
    """Refuse a key that verl would never read; a YAML file can hold one without Hydra noticing.

    Args:
        config: The composed configuration, interpolations as text.
        added: Dotted keys that the command line adds with ``+``: they may stand in nodes that verl reads by name, but
            not in those that it builds a dataclass from, which would refuse them after the start.

    Raises:
        ConfigError: a key that neither verl's YAML nor its dataclasses know, or a value in place of a mapping.
    """
    own = {key: value for key, value in config.items() if key not in _OURS}
    for parent, key, names in _unknown(own, _listed(), ""):
        dotted = f"{parent}.{key}" if parent else key
        if names is None and any(_covers(one, dotted) for one in added):
            continue
        known = _at(_listed(), parent).keys() | (names or set())
        raise ConfigError(f"unknown key {dotted}; {hint(parent, key, known)}")


def _covers(added: str, dotted: str) -> bool:
    return f"{dotted}.".startswith(f"{added}.") or f"{added}.".startswith(f"{dotted}.")


def _at(node: Mapping[str, Any], dotted: str) -> Mapping[str, Any]:
    for part in filter(None, dotted.split(".")):
        node = node[part]
    return node


@cache
def _listed() -> Mapping[str, Any]:
    """verl's defaults as one flat file, which verl ships."""
    path = verl_folder() / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    listed: Mapping[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return listed


def _unknown(
    node: Mapping[str, Any], listed: Mapping[str, Any], parent: str
) -> Iterator[tuple[str, str, frozenset[str] | None]]:
    """Parent, key, and the fields of the parent's dataclass (None: it has none) of every unlisted, unknown key."""
    fields = _fields(str(node.get("_target_", "")))
    for key, value in node.items():
        dotted = f"{parent}.{key}" if parent else str(key)
        known = listed.get(key)
        if key not in listed:
            if fields is None or key not in fields:
                yield parent, str(key), fields
        elif isinstance(known, dict) and known and dotted not in _FREE:
            if isinstance(value, dict):
                yield from _unknown(value, known, dotted)
            elif value is not None and "${" not in str(value):
                raise ConfigError(f"{dotted} must be a mapping, got {value!r}; it holds {', '.join(sorted(known))}")


@cache
def _fields(target: str) -> frozenset[str] | None:
    """Field names of a dataclass of verl by its dotted name; None if it is not one of the config dataclasses."""
    names: set[str] = set()
    waiting = [target.rpartition(".")[2]]
    if waiting[0] not in _classes():
        return None
    while waiting:
        found = _classes().get(waiting.pop())
        if found is not None:
            names |= found[0]
            waiting += found[1]
    return frozenset(names)


@cache
def _classes() -> Mapping[str, tuple[frozenset[str], tuple[str, ...]]]:
    """Class name to annotated names and base classes, read from the source."""
    classes = {}
    for folder in _DATACLASSES:
        for file in sorted((verl_folder() / folder).glob("*.py")):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    named = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
                    fields = frozenset(target.id for target in named if isinstance(target, ast.Name))
                    bases = tuple(base.id for base in node.bases if isinstance(base, ast.Name))
                    classes[node.name] = (fields, bases)
    return classes
