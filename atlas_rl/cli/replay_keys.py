"""The KEY=VALUE words of ``atlas-rl replay``."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import yaml

from atlas_rl.errors import ConfigError

_UNSAFE = re.compile(r"[^A-Za-z0-9._=+-]+")
_MAX_NAME = 80
"""Characters of the folder that a replay is named after."""


def pairs(option: str, words: Sequence[str]) -> dict[str, str]:
    """Split KEY=VALUE words.

    Raises:
        ConfigError: a word has no key or no `=`, or a key is given twice.
    """
    read: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise ConfigError(f"{option} {word!r} is not KEY=VALUE")
        if key in read:
            raise ConfigError(f"{option} gives {key} twice, as {read[key]!r} and {value!r}; give it once")
        read[key] = value
    return read


def reward_changes(words: Sequence[str]) -> dict[str, Any]:
    """The keys of --reward as YAML reads them; a number with a point keeps its digits.

    Raises:
        ConfigError: a word is not KEY=VALUE, or its value is not YAML.
    """
    changes: dict[str, Any] = {}
    for key, text in pairs("--reward", words).items():
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--reward {key}={text} cannot be read: {' '.join(str(error).split())}") from error
        changes[key] = text if isinstance(value, float) else value
    return changes


def replay_name(words: Sequence[str]) -> str:
    """A folder name that tells one set of keys from any other."""
    whole = "_".join(sorted(words))
    name = _UNSAFE.sub("-", whole)
    if name == whole and len(name) <= _MAX_NAME:
        return name
    return f"{name[:_MAX_NAME]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
