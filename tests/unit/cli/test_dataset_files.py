"""A dataset that a run cannot use is refused with its file, row and field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from start_of_a_run import changed_dataset, config, dataset

from atlas_rl.cli.dataset_files import benchmarks_of, check_batch_fits, read_datasets
from atlas_rl.data.parquet import write_rows
from atlas_rl.errors import AtlasError, ConfigError
from atlas_rl.tasks.benchmark import BENCHMARKS
from atlas_rl.tasks.urn import UrnConfig, make_rows

KEY = "data.train_files"


def refusal(files: Any) -> str:
    with pytest.raises(AtlasError) as caught:
        read_datasets(config(**{KEY: files}), KEY)
    return str(caught.value)


def urn_surface(path: Path, **changes: Any) -> str:
    """The urn's surface under a path of its own."""
    path.write_text(yaml.safe_dump({**yaml.safe_load((BENCHMARKS / "urn.yaml").read_text()), **changes}))
    return str(path)


def test_files_are_read_with_what_the_manifest_needs(tmp_path: Path) -> None:
    one, two = dataset(tmp_path / "1.parquet", 3), dataset(tmp_path / "2.parquet", 2)
    first, second = read_datasets(config(**{KEY: [one, two]}), KEY)
    assert (first.path, first.specs, len(first.openings), len(second.openings)) == (one, ("urn",), 3, 2)
    assert first.openings[0][1][0] == {"role": "system", "content": "Find the hidden letter."}
    assert len(first.sha256) == 64
    assert first.sha256 != second.sha256


def test_a_file_that_is_not_there_is_refused() -> None:
    assert refusal("no/such.parquet") == (
        f"data.train_files=no/such.parquet: no such file; build it, or give the path from {Path.cwd()}"
    )


def test_a_file_by_another_ending_is_refused_because_verl_goes_by_it() -> None:
    assert refusal("rows.jsonl") == (
        "data.train_files=rows.jsonl: verl reads a file by its ending; name it FILE.parquet"
    )
    assert refusal([]) == "data.train_files must be a parquet file or a list of them, got []"


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_text("rows")
    assert refusal(str(path)).startswith(f"{path}: cannot be read as parquet: ArrowInvalid: ")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = dataset(tmp_path / "x.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["reward_model"]), path)
    assert refusal(path) == (
        f"{path}: column 'reward_model' is missing, there are ['data_source', 'agent_name', 'ability', 'prompt', "
        "'extra_info']; rebuild the dataset"
    )


def first_candidate(row: dict[str, Any]) -> dict[str, Any]:
    return row["extra_info"]["cached_candidates"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda row: first_candidate(row).update(reasoning=None),
            "row 2 candidate 0: field 'reasoning' is missing, there are ['answer', 'cost_usd', 'is_correct', "
            "'reasoning', 'timed_out']; rebuild the dataset",
        ),
        (
            lambda row: first_candidate(row).update(cost_usd="-0.1"),
            "row 2 candidate 0: cost_usd='-0.1': must be a decimal number of at least 0, as a string such as '0.25'",
        ),
        (
            lambda row: first_candidate(row).update(cost_usd="free"),
            "row 2 candidate 0: cost_usd='free': must be a decimal number of at least 0, as a string such as '0.25'",
        ),
        (
            lambda row: first_candidate(row).update(cost_usd="NaN"),
            "row 2 candidate 0: cost_usd='NaN': must be a decimal number of at least 0, as a string such as '0.25'",
        ),
        (
            lambda row: row["extra_info"].update(benchmark_spec="urne"),
            "benchmark_spec 'urne': no file BENCHMARKS/urne.yaml; use a path that ends in .yaml, or one of: "
            "gsm8k, urn, urn_boundary, urn_notes",
        ),
        (
            lambda row: row["extra_info"].update(benchmark_spec="gsm8k"),
            "row 2: benchmark_spec='gsm8k': describes 'gsm8k' but the row is of 'urn'; rebuild the dataset",
        ),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    path = changed_dataset(tmp_path / "x.parquet", change)
    seen = refusal(path)
    assert seen.removeprefix(f"{path} ").replace(str(BENCHMARKS), "BENCHMARKS") == message
    assert seen.startswith((path, "benchmark_spec"))


def test_a_batch_larger_than_the_file_is_refused_because_verl_drops_it(tmp_path: Path) -> None:
    path = dataset(tmp_path / "x.parquet", 3)
    files = read_datasets(config(**{KEY: path}), KEY)
    with pytest.raises(ConfigError) as caught:
        check_batch_fits(config(), files)
    assert str(caught.value) == f"data.train_batch_size=4 is more than the 3 rows of {path}; lower it to at most 3"
    check_batch_fits(config(**{"data.train_batch_size": 3}), files)
    with pytest.raises(ConfigError) as caught:
        check_batch_fits(config(**{"data.train_batch_size": 3, "data.train_max_samples": 2}), files)
    assert str(caught.value) == (
        f"data.train_batch_size=3 is more than the 3 rows of {path}, of which data.train_max_samples=2 are used; "
        "lower it to at most 2"
    )


def test_two_descriptions_of_one_benchmark_are_refused(tmp_path: Path) -> None:
    rows = make_rows(UrnConfig(), 2, seed=0, id_prefix="q")
    specs = ["urn", urn_surface(tmp_path / "same.yaml"), urn_surface(tmp_path / "other.yaml", observation="<{answer}>")]
    paths = []
    for place, spec in enumerate(specs):
        paths.append(str(tmp_path / f"{place}.parquet"))
        write_rows(rows, spec, Path(paths[-1]))
    files = read_datasets(config(**{KEY: paths}), KEY)
    assert list(benchmarks_of(files[:2])) == specs[:2]
    with pytest.raises(ConfigError) as caught:
        benchmarks_of(files)
    assert str(caught.value) == (
        f"{paths[2]}: benchmark_spec {specs[2]!r} describes 'urn' otherwise than 'urn' does, which other rows of the "
        "run use; give it a name of its own"
    )


def test_a_submit_that_may_leave_out_the_answer_is_refused(tmp_path: Path) -> None:
    submit = yaml.safe_load((BENCHMARKS / "urn.yaml").read_text())["submit"]
    submit["parameters"]["required"] = []
    spec = urn_surface(tmp_path / "loose.yaml", submit=submit)
    path = tmp_path / "x.parquet"
    write_rows(make_rows(UrnConfig(), 2, seed=0, id_prefix="q"), spec, path)
    with pytest.raises(ConfigError) as caught:
        benchmarks_of(read_datasets(config(**{KEY: str(path)}), KEY))
    assert str(caught.value) == (
        f"{path}: benchmark_spec {spec!r}: submission_field 'answer' is not in submit's required arguments []; add it"
    )
