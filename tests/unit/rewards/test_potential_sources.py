from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from potential_tables import row, written

from atlas_rl.errors import ConfigError, DataError
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.potential_sources import PotentialSources, potential_of
from atlas_rl.rewards.potentials import ZERO, exact_value
from atlas_rl.rewards.recorded_potential import RecordedPotential

Q1 = ("q1", "p", "f1")


@pytest.fixture
def table(tmp_path: Path) -> str:
    written(tmp_path / "t.parquet", [row(Q1, [1, 3], [4, 4])], strength="4")
    return str(tmp_path / "t.parquet")


def read(values: dict[str, Any]) -> PotentialSources:
    return PotentialSources.from_mapping(values)


def test_a_run_names_parts_by_weight_and_their_files_beside_it(table: str) -> None:
    atlas = {"reward": {"potentials": {"table": 0.5, "zero": 2}}, "potentials": {"table": {"path": table}}}
    potential = potential_of(atlas)
    #           counts  pool mean 1/2 shrinks the pool's 1/4 to 3/8, which shrinks 1/4 to 5/16
    assert exact_value(potential, *Q1, 0) * 2 == Decimal("0.3125")


def test_no_part_is_zero_also_in_a_run_of_before_the_node_existed() -> None:
    assert potential_of({"reward": {}}) is ZERO


def test_a_mapping_reads_back_as_it_was(table: str) -> None:
    sources = read({"table": {"path": table}, "later": {"kind": "recorded"}})
    assert PotentialSources.from_mapping(sources.to_mapping()) == sources
    assert sources.bound().to_mapping()["table"]["sha256"] == sources.tables()["table"].sha256
    assert sources.bound().to_mapping()["later"] == {"kind": "recorded", "path": None, "sha256": None}


def test_a_recorded_part_needs_no_file() -> None:
    potential = read({"later": {"kind": "recorded"}}).potential(RewardConfig(potentials=(("later", Decimal(1)),)))
    assert [part for _, _, part in potential.parts] == [RecordedPotential("later")]  # type: ignore[attr-defined]


def test_another_file_than_the_run_was_started_with_is_refused(table: str, tmp_path: Path) -> None:
    bound = read({"table": {"path": table}}).bound()
    digest = dict(bound.parts)["table"].sha256
    bound.tables()
    other = written(tmp_path / "t.parquet", [row(Q1, [2, 3], [4, 4])])
    with pytest.raises(DataError) as caught:
        bound.potential(RewardConfig(potentials=(("table", Decimal(1)),)))
    assert str(caught.value) == (
        f"atlas.potentials.table.path={table}: sha256 {other.sha256}, but the run is bound to {digest}; restore the "
        "file"
    )


def test_a_table_that_is_not_there_is_named_by_its_key(tmp_path: Path) -> None:
    sources = read({"table": {"path": str(tmp_path / "none.parquet")}})
    with pytest.raises(DataError, match=r"^atlas\.potentials\.table\.path: .*none\.parquet: no such file; "):
        sources.tables()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"table": {}}, "atlas.potentials.table.path is not set; give the table that holds its values"),
        ({"table": {"file": "x"}}, "potentials.table.file is no key of a potential; use one of: kind, path, sha256"),
        ({"table": {"path": 3}}, "atlas.potentials.table.path must be text or null, got 3"),
        ({"table": "x.parquet"}, "atlas.potentials.table must be a mapping, got 'x.parquet'; give atlas.potentials."),
        ({"table": {"kind": "tabel"}}, "atlas.potentials.table.kind='tabel' is not known; use one of: table, recorded"),
        ({"zero": {"path": "x"}}, "atlas.potentials.zero: zero is built in and reads nothing; leave it out"),
        ({"p": {"kind": "recorded", "path": "x"}}, "atlas.potentials.p.path='x' is given beside kind=recorded"),
    ],
)  # fmt: skip
def test_a_wrong_source_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(values)
    assert said in str(caught.value)


def test_weights_and_sources_must_name_each_other(table: str) -> None:
    with pytest.raises(ConfigError, match=r"reward\.potentials\.tabel is not known; .*atlas\.potentials\.tabel\.path="):
        read({"table": {"path": table}}).potential(
            RewardConfig(potentials=(("table", Decimal(1)), ("tabel", Decimal(1))))
        )
    with pytest.raises(ConfigError, match=r"atlas\.potentials\.table is given, but reward\.potentials=\[\] does not"):
        read({"table": {"path": table}}).potential(RewardConfig())
