"""JSON Schemas of the stored records, for readers that are not Python."""

import json
from pathlib import Path

from atlas_rl.records.base import Record
from atlas_rl.records.episode import Episode
from atlas_rl.records.trajectory import Trajectory

SCHEMAS: dict[str, type[Record]] = {"trajectory.schema.json": Trajectory, "episode.schema.json": Episode}
"""File name of each schema and the record it describes."""


def json_schema_text(record: type[Record]) -> str:
    """The JSON Schema of ``record`` as it is written: every field is there, money is a string."""
    return json.dumps(record.model_json_schema(mode="serialization"), indent=2, sort_keys=True) + "\n"


def write_json_schemas(out_dir: Path) -> list[Path]:
    """Write trajectory.schema.json and episode.schema.json to ``out_dir``, over old ones, and return their paths."""
    out_dir.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, record in SCHEMAS.items():
        path = out_dir / name
        path.write_text(json_schema_text(record), encoding="utf-8")
        paths.append(path)
    return paths
