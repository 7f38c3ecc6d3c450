"""Which reward a replay scores by."""

import hashlib
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from replay_runs import BOTH, rows, stored_run

from atlas_rl.errors import ConfigError, DataError, RecordError
from atlas_rl.records.json_text import to_json
from atlas_rl.reporting.manifest import read_manifest
from atlas_rl.reporting.replay_reward import reward_of_run
from atlas_rl.rewards.config import Preset, RewardConfig
from atlas_rl.rewards.potential_table import CountedRow, Pool, TableHeader, encode_table
from atlas_rl.rewards.potentials import ZERO


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return stored_run(tmp_path / "run-a", *rows(1), config={"runtime": {"grader_timeout_seconds": 2.5}})


def test_a_run_is_scored_by_its_own_reward_also_from_a_folder_inside_it(run: Path) -> None:
    for folder in (run, run / "train", run / "train" / "step_1"):
        found = reward_of_run(folder)
        assert (found.reward, found.potential, found.run_id, found.grader_seconds) == (BOTH, ZERO, "run-a", 2.5)


def test_given_keys_take_the_place_of_the_runs_own(run: Path) -> None:
    found = reward_of_run(run, {"preset": "custom", "per_explore": "0.5", "per_dollar": 0})
    assert found.reward == RewardConfig(preset=Preset.CUSTOM, per_explore=Decimal("0.5"), per_dollar=Decimal(0))


def test_one_weight_can_be_given_alone(run: Path) -> None:
    assert reward_of_run(run, {"potentials.zero": "0.5"}).reward.potentials == (("zero", Decimal("0.5")),)
    assert reward_of_run(run, {"potentials": {"zero": 2}, "potentials.zero": None}).reward.potentials == ()


def test_a_store_without_a_run_needs_a_reward_and_takes_rows_of_any_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no run\.json there or above it, so its reward is unknown; give --reward"):
        reward_of_run(tmp_path)
    found = reward_of_run(tmp_path, {"preset": "both"})
    assert (found.reward, found.run_id, found.grader_seconds) == (BOTH, None, None)


def test_an_unknown_key_and_a_part_without_a_source_are_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"reward\.price is no key of the reward"):
        reward_of_run(run, {"price": 1})
    with pytest.raises(ConfigError, match=r"reward\.potentials\.table is not known"):
        reward_of_run(run, {"potentials.table": 1})
    with pytest.raises(
        ConfigError, match=r"--potential table=t\.parquet has no weight; add --reward potentials\.table"
    ):
        reward_of_run(run, {}, {"table": "t.parquet"})


def table(path: Path, right: int) -> str:
    """Write a table of row q0, of whose submits at prefix 0 ``right`` of 4 were right; return its sha256."""
    counts = CountedRow("q0", "p0", "f" * 64, "urn", (right, 1), (4, 2))
    pool = Pool(right=(right, 1), total=(4, 2))
    header = TableHeader(strength=Decimal(2), pools={"urn": pool}, runs=(), partitions=("train",), from_step=0)
    path.write_bytes(encode_table(header, [counts]))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_is_shaped_by_the_table_that_it_was_bound_to_also_where_it_has_moved(tmp_path: Path) -> None:
    bound, other = tmp_path / "bound.parquet", tmp_path / "other.parquet"
    digest = table(bound, 3)
    table(other, 2)
    shaped = replace(BOTH, potentials=(("table", Decimal(1)),))
    sources = {"potentials": {"table": {"kind": "table", "path": str(bound), "sha256": digest}}}
    run = stored_run(tmp_path / "run", *rows(1), reward=shaped, config=sources)
    row = ("q0", "p0", "f" * 64, 0)
    own = reward_of_run(run).potential.value(*row)
    assert own > 0
    bound.rename(tmp_path / "moved.parquet")
    with pytest.raises(DataError, match=r"bound\.parquet"):
        reward_of_run(run)
    assert reward_of_run(run, None, {"table": str(tmp_path / "moved.parquet")}).potential.value(*row) == own
    with pytest.raises(DataError, match=r"other\.parquet: sha256 .* but the run is bound to"):
        reward_of_run(run, None, {"table": str(other)})
    assert reward_of_run(run, {}, {"table": str(other)}).potential.value(*row) != own
    assert reward_of_run(run, {"potentials": {}}).potential is ZERO


def test_a_manifest_without_a_reward_is_refused(run: Path) -> None:
    manifest = read_manifest(run / "run.json").model_copy(update={"config": {"atlas": {}}})
    (run / "run.json").write_bytes(to_json(manifest))
    with pytest.raises(RecordError, match=r"run\.json of 'run-a': atlas\.reward is not there"):
        reward_of_run(run)
