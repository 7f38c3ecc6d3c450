"""What a run's folder says about the run: its manifests, how far it came, what it has stored."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from atlas_rl.errors import RecordError
from atlas_rl.records.json_text import loads, to_json
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.reporting.manifest import Manifest, read_attempts
from atlas_rl.reporting.manifest_diff import Comparison, compare
from atlas_rl.reporting.metrics import read_metrics

PARTITIONS = ("train", "val")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """One run as read from its folder."""

    folder: Path
    attempts: tuple[Manifest, ...]
    """By number; the first is run.json's."""
    changes: tuple[Comparison, ...]
    """Each attempt but the first against the one before it."""
    last_step: int | None
    """Of the last line of metrics.jsonl; None: nothing was logged."""
    last_time: str | None
    """When that line was written, UTC."""
    trajectories: Mapping[str, int]
    """Stored rows of all attempts, by partition."""
    torn: tuple[str, ...]
    """What a kill cut short and reading skipped."""

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "folder": str(self.folder),
            "attempts": [loads(to_json(manifest)) for manifest in self.attempts],
            "changes": [change.plain() for change in self.changes],
            "last_step": self.last_step,
            "last_time": self.last_time,
            "trajectories": dict(self.trajectories),
            "torn": list(self.torn),
        }


def read_overview(run_dir: Path) -> RunOverview:
    """Read a run's folder.

    Raises:
        RecordError: it is no run's, or a file of it is damaged.
    """
    attempts = tuple(read_attempts(run_dir))
    step, time, torn = _progress(run_dir / "metrics.jsonl")
    rows: Counter[str] = Counter(dict.fromkeys(PARTITIONS, 0))
    for partition in PARTITIONS:
        if (run_dir / partition).is_dir():
            store = TrajectoryStore(run_dir / partition)
            rows[partition] = sum(1 for _ in store.headers())
            torn += [f"{one.file}: {one.what}" for one in store.torn]
    return RunOverview(
        folder=run_dir,
        attempts=attempts,
        changes=tuple(compare(*pair) for pair in pairwise(attempts)),
        last_step=step,
        last_time=time,
        trajectories=dict(rows),
        torn=tuple(torn),
    )


def _progress(path: Path) -> tuple[int | None, str | None, list[str]]:
    if not path.is_file():
        return None, None, []
    read = read_metrics(path)
    torn = [f"{path}: line {number} is cut short" for number in read.torn]
    if not read.lines:
        return None, None, torn
    last = read.lines[-1]
    if "step" not in last or "time" not in last:
        raise RecordError(f"{path} line {len(read.lines)}: no step and time there; restore the file from a copy")
    return last["step"], last["time"], torn
