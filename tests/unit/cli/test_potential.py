"""`atlas-rl potential`, and what a run that names a table is told before it starts."""

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from record_builders import trajectory
from start_of_a_run import config, dataset, refusal, run_files
from typer.testing import CliRunner

from atlas_rl.cli.main import app
from atlas_rl.cli.preflight import preflight
from atlas_rl.cli.run_folder import RunFolder
from atlas_rl.data.parquet import read_rows
from atlas_rl.errors import ConfigError, DataError
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.rewards.potential_sources import potential_of
from atlas_rl.rewards.potential_table import read_table
from atlas_rl.tasks.row import Row
from atlas_rl.training.config import atlas_config

WEIGHTS = {"atlas.reward.potentials": {"table": 0.5}}
PATH = "atlas.potentials.table.path"


def stored(row: Row, explores: int, *, correct: bool) -> Trajectory:
    """An episode of a dataset's row."""
    names = {"permutation_id": row.permutation_id, "candidate_fingerprint": row.candidate_fingerprint}
    told = trajectory(f"{row.question_id}-u{explores}", question_id=row.question_id, explores=explores, correct=correct)
    return told.model_copy(update={**names, "episode": told.episode.model_copy(update=names)})


def run(folder: Path, rows: Iterable[Row]) -> Path:
    """A run in which every row was submitted after one explore, rightly, and after three, wrongly."""
    with TrajectoryWriter(folder / "train" / "step_1", "w") as writer:
        for row in rows:
            writer.append(stored(row, 1, correct=True))
            writer.append(stored(row, 3, correct=False))
    return folder


def invoke(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["potential", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that may start, and a table for all its rows."""
    folder = tmp_path_factory.mktemp("run")
    files = run_files(folder)
    rows = read_rows(Path(files["data.train_files"]))
    whole = str(folder / "t.parquet")
    cover = ["--cover", files["data.train_files"], "--cover", files["data.val_files"]]
    invoke("build", str(run(folder / "run-a", rows[:2])), "--out", whole, *cover, "--strength", "2")
    return {**files, **WEIGHTS, PATH: whole}


def test_build_counts_and_show_prints_the_same_table(given: dict[str, Any], tmp_path: Path) -> None:
    rows = read_rows(Path(given["data.train_files"]))
    out = tmp_path / "tables" / "t.parquet"
    built = invoke("build", str(run(tmp_path / "run", rows)), "--out", str(out))
    assert built[0] == (
        f"{tmp_path}/run: 10 trajectories, 0 superseded, 0 of another partition or step, 0 without a graded submit, "
        "10 counted"
    )
    shown = invoke("show", str(out))
    assert built[1:] == shown
    assert shown[:3] == [
        "run run-a: 10 submits of 10 trajectories",
        "counted: train and val, from step 0; the prior is worth 4 submits",
        "urn: 5 questions",
    ]
    #                          submits right questions prior
    assert shown[5].split() == ["1", "5", "5", "5", "0.7778", "0.8222", "0.8222", "0.8222"]
    digest = read_table(str(out)).sha256
    assert shown[-1] == f"potential: questions=5 prefixes=45 submits=10 sha256={digest}"


def test_a_table_is_not_written_over_another(given: dict[str, Any]) -> None:
    result = CliRunner().invoke(app, ["potential", "build", "run", "--out", given[PATH]])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"{given[PATH]} is there already; remove it or choose another --out"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--strength", "x"], "--strength must be a decimal number, got 'x'"),
        (["--strength", "0"], "--strength must be a finite number of submits above 0, got 0"),
        (["--partition", "test"], "--partition must be one of train, val, both, got 'test'"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, option: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["potential", "build", "run", "--out", str(tmp_path / "t.parquet"), *option])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == said


def test_a_file_that_is_no_table_is_not_shown(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["potential", "show", str(tmp_path / "none.parquet")])
    assert isinstance(result.exception, DataError)


def started(one: DictConfig) -> dict[str, Any]:
    """The manifest of a run that starts."""
    atlas = atlas_config(one)
    folder = RunFolder(one, atlas, preflight(one, atlas))
    folder.enter()
    manifest: dict[str, Any] = json.loads((folder.atlas.run.folder / "run.json").read_text())
    return manifest


def test_a_run_with_a_table_binds_its_bytes(given: dict[str, Any], tmp_path: Path) -> None:
    one = config(**given, **{"atlas.run.artifacts_dir": str(tmp_path)})
    manifest = started(one)
    digest = read_table(given[PATH]).sha256
    assert manifest["potential"]["name"] == "0.5 * table"
    assert manifest["potential"]["parts"] == [{"name": "table", "weight": "0.5", "kind": "table", "sha256": digest}]
    assert manifest["config"]["atlas"]["potentials"]["table"]["sha256"] == digest
    row = read_rows(Path(given["data.val_files"]))[0]
    for again in (potential_of(manifest["config"]["atlas"]), _workers(one)):
        worth = again.value(row.question_id, row.permutation_id, row.candidate_fingerprint, 3)
        assert worth == read_table(given[PATH]).value(*_named(row), 3) / 2


def _workers(one: DictConfig) -> Any:
    atlas = atlas_config(one)
    return atlas.potentials.potential(atlas.reward)


def _named(row: Row) -> tuple[str, str, str]:
    return (row.question_id, row.permutation_id, row.candidate_fingerprint)


def test_a_worker_that_finds_another_file_stops(given: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(Path(given[PATH]).read_bytes())
    one = config(**{**given, PATH: str(path), "atlas.run.artifacts_dir": str(tmp_path)})
    started(one)
    _workers(one)
    path.unlink()
    rows = read_rows(Path(given["data.train_files"]))
    invoke("build", str(run(tmp_path / "other", rows)), "--out", str(path))
    with pytest.raises(DataError, match=rf"^{PATH}={path}: sha256 .*, but the run is bound to .*; restore the file$"):
        _workers(one)


def test_a_resume_with_another_table_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    place = {"atlas.run.artifacts_dir": str(tmp_path)}
    first = started(config(**given, **place))["potential"]["sha256"]
    rows = read_rows(Path(given["data.train_files"]))
    other = str(tmp_path / "t.parquet")
    invoke("build", str(run(tmp_path / "other", rows)), "--out", other)
    with pytest.raises(ConfigError) as caught:
        started(config(**{**given, PATH: other}, **place, **{"atlas.run.resume": True}))
    assert "run.json was started otherwise: atlas.potentials.table.path=" in str(caught.value)
    assert first not in other


def test_a_table_that_lacks_a_row_is_refused_before_the_start(given: dict[str, Any], tmp_path: Path) -> None:
    rows = read_rows(Path(given["data.train_files"]))
    small = str(tmp_path / "t.parquet")
    invoke("build", str(run(tmp_path / "small", rows[:1])), "--out", small)
    train = given["data.train_files"]
    assert refusal(config(**{**given, PATH: small})) == (
        f"data.train_files={train} row 1: {PATH}={small} has no question 'q000001', permutation 'as_drawn', prefix 0; "
        "build it with --cover FILE.parquet of the dataset"
    )


def test_a_table_of_other_candidates_is_refused_before_the_start(given: dict[str, Any], tmp_path: Path) -> None:
    row = read_rows(Path(given["data.train_files"]))[0]
    dearer = tuple(one.model_copy(update={"cost_usd": Decimal(9)}) for one in row.candidates)
    other = row.model_copy(update={"candidates": dearer})
    wrong = str(tmp_path / "t.parquet")
    invoke("build", str(run(tmp_path / "other", [other])), "--out", wrong)
    said = refusal(config(**{**given, PATH: wrong}))
    assert said.startswith(f"data.train_files={given['data.train_files']} row 0: {PATH}={wrong} has question 'q000000'")
    assert f"candidate_fingerprint={other.candidate_fingerprint}, not {row.candidate_fingerprint}; " in said


def test_a_table_is_looked_for_before_models_and_data(given: dict[str, Any]) -> None:
    none = {PATH: "none.parquet", "actor_rollout_ref.model.path": "no-model"}
    assert refusal(config(**{**given, **none})).startswith(f"{PATH}: none.parquet: no such file; ")
    assert refusal(config(**{**given, **none, "atlas.reward.potentials": {}})).startswith(
        "atlas.potentials.table is given, but reward.potentials=[] does not weigh it; "
    )


def test_a_recorded_part_cannot_shape_a_run_that_samples(given: dict[str, Any]) -> None:
    later = {"atlas.potentials": {"later": {"kind": "recorded"}}, "atlas.reward.potentials": {"later": 1}}
    files = {key: value for key, value in given.items() if key != PATH}
    assert refusal(config(**{**files, **later})).startswith("atlas.potentials.later.kind=recorded is read from stored")


def test_a_dataset_that_is_covered_needs_no_run_of_its_own(given: dict[str, Any], tmp_path: Path) -> None:
    wider = {**given, "data.val_files": dataset(tmp_path / "val.parquet", 5)}
    one = config(**wider)
    assert preflight(one, atlas_config(one)).num_val_rows == 5
