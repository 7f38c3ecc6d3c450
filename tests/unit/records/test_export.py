"""The export is one readable file a trajectory, and never overwrites."""

from pathlib import Path

import pytest
from record_builders import trajectory

from atlas_rl.errors import RecordError
from atlas_rl.records.export import export
from atlas_rl.records.json_schema import SCHEMAS, json_schema_text, write_json_schemas
from atlas_rl.records.json_text import from_json
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory

COMMITTED = Path(__file__).parents[3] / "docs" / "schema"


def test_each_trajectory_becomes_a_file_named_by_uid_session_and_attempt(tmp_path: Path) -> None:
    rows = [trajectory("a", 0), trajectory("a", 1, answer="\ud83d"), trajectory("a", 0, attempt_id=1)]
    with TrajectoryWriter(tmp_path / "store", "w") as writer:
        for row in rows:
            writer.append(row)
    written = export(tmp_path / "store", tmp_path / "out")
    assert [path.name for path in written] == ["a_0_a0.json", "a_1_a0.json", "a_0_a1.json"]
    assert [from_json(Trajectory, path.read_bytes()) for path in written] == rows
    assert written[0].read_text("ascii").startswith('{\n  "file_version": 1,\n  "run_id": "run-a",\n')


def test_an_export_over_an_old_one_is_refused(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path / "store", "w") as writer:
        writer.append(trajectory("a"))
    export(tmp_path / "store", tmp_path / "out")
    with pytest.raises(RecordError, match=r"a_0_a0\.json is already there; export to an empty folder"):
        export(tmp_path / "store", tmp_path / "out")


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_the_committed_schemas_are_current(name: str) -> None:
    committed = (COMMITTED / name).read_text("utf-8")
    assert committed == json_schema_text(SCHEMAS[name]), "run write_json_schemas(Path('docs/schema'))"


def test_schemas_are_written_over_old_ones(tmp_path: Path) -> None:
    (tmp_path / "episode.schema.json").write_text("old")
    assert [path.name for path in write_json_schemas(tmp_path)] == ["trajectory.schema.json", "episode.schema.json"]
    assert (tmp_path / "episode.schema.json").read_text("utf-8").startswith("{\n")
