"""A store as one readable JSON file a trajectory."""

from pathlib import Path

from atlas_rl.errors import RecordError
from atlas_rl.records.json_text import to_json
from atlas_rl.records.store import TrajectoryStore


def export(folder: Path, out_dir: Path) -> list[Path]:
    """Write each trajectory under ``folder`` to out_dir/UID_SESSION_aATTEMPT.json and return the files in store order.

    Raises:
        RecordError: a file is already there, or a shard is damaged; files written before stay.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    written = []
    for trajectory in TrajectoryStore(folder):
        path = out_dir / f"{trajectory.uid}_{trajectory.session_id}_a{trajectory.attempt_id}.json"
        try:
            with path.open("xb") as file:
                file.write(to_json(trajectory, indent=2) + b"\n")
        except FileExistsError as error:
            raise RecordError(f"export: {path} is already there; export to an empty folder") from error
        written.append(path)
    return written
