"""metrics.jsonl: one line a step, written at once, readable after a kill."""

import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from atlas_rl.errors import RecordError
from atlas_rl.records.json_text import loads

_TORN_ABOVE = "torn_above"
"""Marks the line above as one that a kill cut short."""
RESERVED = frozenset({"step", "time", "nonfinite", _TORN_ABOVE})
"""Keys of a line that are not metrics."""


class MetricsLog:
    """Appends to one metrics file; each line is one write, so a kill tears at most the last one."""

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending; a torn last line of an earlier attempt is closed off and marked, not removed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = io.FileIO(path, "a")
        if _is_torn(path):
            self._append(b"\n" + json.dumps({_TORN_ABOVE: True}).encode())

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append {"step", "time", metrics...}; time is UTC, ISO 8601 with microseconds.

        A value that is not finite is written as null and its key is listed under "nonfinite".

        Raises:
            RecordError: a value is not a number, or a key is one of RESERVED.
        """
        line: dict[str, Any] = {"step": step, "time": datetime.now(UTC).isoformat(timespec="microseconds")}
        nonfinite = []
        for key, value in metrics.items():
            if key in RESERVED:
                raise RecordError(f"{self._path} step {step}: metric {key!r} uses a reserved key; rename it")
            number = _number(value)
            if number is None:
                raise RecordError(
                    f"{self._path} step {step}: metric {key!r} is {value!r}, a {type(value).__name__}; log numbers only"
                )
            if not math.isfinite(number):
                nonfinite.append(key)
            line[key] = number if math.isfinite(number) else None
        if nonfinite:
            line["nonfinite"] = nonfinite
        self._append(json.dumps(line, allow_nan=False).encode())

    def close(self) -> None:
        """Wait for the disk and close the file. Closing twice is fine."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def _append(self, line: bytes) -> None:
        data = line + b"\n"
        while data:
            data = data[self._file.write(data) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRead:
    """A metrics file as read."""

    lines: tuple[dict[str, Any], ...]
    """In file order; a resumed run repeats the steps that it ran again."""
    torn: tuple[int, ...]
    """Numbers, from 1, of the lines that a kill cut short."""


def read_metrics(path: Path) -> MetricsRead:
    """Read every whole line.

    Raises:
        RecordError: a line is damaged otherwise than by a kill of its writer.
    """
    texts = path.read_bytes().split(b"\n")
    if not texts[-1]:
        texts.pop()
    parsed = [_parsed(text) for text in texts]
    lines: list[dict[str, Any]] = []
    torn: list[int] = []
    for number, line in enumerate(parsed, start=1):
        if line is not None:
            if _TORN_ABOVE not in line:
                lines.append(line)
        elif number == len(parsed) or _TORN_ABOVE in (parsed[number] or {}):
            torn.append(number)
        else:
            what = f"{texts[number - 1][:80]!r} is no JSON object"
            raise RecordError(f"{path} line {number}: {what}; restore the file from a copy")
    return MetricsRead(lines=tuple(lines), torn=tuple(torn))


def _number(value: Any) -> int | float | None:
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return None


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = loads(text)
    except RecordError:
        return None
    return line if isinstance(line, dict) else None


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
