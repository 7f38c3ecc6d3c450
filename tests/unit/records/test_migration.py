"""Old records are read as what they were; what they did not record is unknown, and newer ones are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from record_builders import trajectory

from atlas_rl.errors import RecordError
from atlas_rl.records.episode import SCHEMA_VERSION, Episode
from atlas_rl.records.json_text import to_json
from atlas_rl.records.migration import EPISODE_STEPS, TRAJECTORY_STEPS, migrate, read_record
from atlas_rl.records.store import StoredRow, TrajectoryStore
from atlas_rl.records.trajectory import FILE_VERSION, TOKEN_ARRAYS, Trajectory, TrajectoryHeader

VERSION_1 = Path(__file__).parent / "version_1"
"""A run of four episodes as the code of commit e176cb9 played, graded, scored and stored it."""


def old_rows() -> list[StoredRow]:
    return list(TrajectoryStore(VERSION_1).headers())


def header(row: Trajectory, **changes: Any) -> bytes:
    """The header of a row with other fields, some of its episode."""
    fields = json.loads(to_json(row, exclude=TOKEN_ARRAYS))
    for name, value in changes.items():
        (fields if name in fields else fields["episode"])[name] = value
    return json.dumps(fields).encode()


def test_the_fixture_is_of_version_1() -> None:
    stored = [json.loads(row.header)["episode"] for row in old_rows()]
    assert [episode["schema_version"] for episode in stored] == [1, 1, 1, 1]
    assert not any("forced" in generation for episode in stored for generation in episode["generations"])


def test_an_old_record_is_read_with_everything_that_it_says_and_nothing_that_it_does_not() -> None:
    for row in old_rows():
        read, stored = json.loads(to_json(row.decode())), json.loads(row.header)
        assert [generation.pop("forced") for generation in read["episode"]["generations"]] == [
            None for _ in stored["episode"]["generations"]
        ]
        assert read["episode"].pop("schema_version") == SCHEMA_VERSION
        assert stored["episode"].pop("schema_version") == 1
        assert read == stored


def test_an_old_record_is_read_with_its_tokens_too() -> None:
    whole = list(TrajectoryStore(VERSION_1))
    assert [(row.uid, row.session_id, len(row.response_ids)) for row in whole] == [
        ("old-a", 0, 11),
        ("old-a", 1, 19),
        ("old-b", 0, 3),
        ("old-b", 1, 5),
    ]
    assert {generation.forced for row in whole for generation in row.episode.generations} == {None}


def test_a_record_of_version_1_that_had_forced_already_keeps_it() -> None:
    fields = json.loads(to_json(trajectory().episode)) | {"schema_version": 1}
    fields["generations"][0]["forced"] = [[0, 2]]
    del fields["generations"][1]["forced"]
    read = read_record(Episode, json.dumps(fields).encode())
    assert [generation.forced for generation in read.generations] == [((0, 2),), None, None]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema_version": 3}, "schema_version=3 is newer than 2, the newest that is read here; read it with the"),
        ({"file_version": 2}, "file_version=2 is newer than 1, the newest that is read here; read it with the"),
        ({"schema_version": 0}, "schema_version=0 is no version that was ever written"),
        ({"file_version": -1}, "file_version=-1 is no version that was ever written"),
        ({"schema_version": "1"}, "episode.schema_version: Input should be 2"),
        ({"schema_version": True}, "episode.schema_version: Input should be 2"),
        ({"schema_version": 1, "generations": [3]}, "schema_version=1: TypeError"),
        ({"schema_version": 1, "model_tokens": "x"}, "not a valid TrajectoryHeader: episode.model_tokens: "),
    ],
)
def test_another_version_is_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecordError) as caught:
        read_record(TrajectoryHeader, header(trajectory(), **changes))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refused_row_of_a_store_names_file_row_and_trajectory() -> None:
    row = old_rows()[1]
    newer = StoredRow(
        **{name: getattr(row, name) for name in StoredRow.__slots__ if name != "header"},
        header=row.header.replace(b'"schema_version":1', b'"schema_version":9'),
    )
    with pytest.raises(RecordError, match=r"w-00000\.arrows row 1: trajectory 'old-a'_1: schema_version=9 is newer"):
        newer.decode()


def test_numbers_that_look_like_a_version_elsewhere_in_a_record_mean_nothing() -> None:
    row = trajectory(extra={"file_version": 9, "episode": {"schema_version": 9}})
    assert read_record(TrajectoryHeader, header(row)).extra == row.extra
    assert read_record(TrajectoryHeader, header(row, schema_version=1)).extra == row.extra


def test_a_broken_record_of_the_newest_version_is_named_by_its_field() -> None:
    with pytest.raises(RecordError, match=r"not a valid TrajectoryHeader: episode\.model_tokens: "):
        read_record(TrajectoryHeader, header(trajectory(), model_tokens="x"))
    not_a_number = header(trajectory()).replace(b'"objective": 1.0', b'"objective": NaN')
    with pytest.raises(RecordError, match=r"not a valid TrajectoryHeader: reward\.objective: Input should be a finite"):
        read_record(TrajectoryHeader, not_a_number)


def test_every_older_version_has_a_step() -> None:
    assert set(EPISODE_STEPS) == set(range(1, SCHEMA_VERSION))
    assert set(TRAJECTORY_STEPS) == set(range(1, FILE_VERSION))


def test_a_migration_leaves_what_it_was_given_alone() -> None:
    fields = json.loads(old_rows()[0].header)
    before = json.dumps(fields)
    assert migrate(TrajectoryHeader, fields)["episode"]["schema_version"] == SCHEMA_VERSION
    assert json.dumps(fields) == before
