"""The checkpoints of a run, told from the names in its folder: nothing is opened but `latest`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas_rl.checkpoint.layout import committed_steps, read_latest, step_name
from atlas_rl.reporting.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSteps:
    """What is on disk."""

    folder: Path
    steps: tuple[int, ...]
    """Committed steps, ascending."""
    latest: int | None
    """What `latest` names."""
    anchors: tuple[int, ...]
    """Committed steps that stay for good."""
    num_bytes: int
    """Of all files of all committed steps."""

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "folder": str(self.folder),
            "steps": list(self.steps),
            "latest": self.latest,
            "anchors": list(self.anchors),
            "num_bytes": self.num_bytes,
        }


def saved_steps(run_dir: Path, manifest: Manifest) -> SavedSteps:
    """Look for a run's checkpoints.

    Args:
        run_dir: artifacts/RUN, below which they are unless the configuration says otherwise.
        manifest: Of the run.

    Raises:
        TrainingError: `latest` does not name a step.
    """
    folder = _folder(run_dir, manifest)
    steps = committed_steps(folder)
    anchor_every = (manifest.config.get("atlas", {}).get("checkpoint") or {}).get("anchor_every")
    return SavedSteps(
        folder=folder,
        steps=tuple(steps),
        latest=read_latest(folder),
        anchors=tuple(step for step in steps if anchor_every and step % anchor_every == 0),
        num_bytes=sum(
            path.stat().st_size for step in steps for path in (folder / step_name(step)).rglob("*") if path.is_file()
        ),
    )


def _folder(run_dir: Path, manifest: Manifest) -> Path:
    """Where the run put them; beside its manifest, if it was moved together with them or says nothing."""
    beside = run_dir / "checkpoints"
    given = (manifest.config.get("trainer") or {}).get("default_local_dir")
    if beside.is_dir() or given is None:
        return beside
    return Path(manifest.working_directory or ".") / str(given)
