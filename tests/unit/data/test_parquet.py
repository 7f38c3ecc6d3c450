"""A dataset comes back as it was written, and a wrong field is named with its file, row, value and remedy."""

import copy
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atlas_rl.data.parquet import SCHEMA, benchmark_from_extra_info, read_rows, row_from_extra_info, write_rows
from atlas_rl.errors import ConfigError, DataError
from atlas_rl.tasks.row import Candidate, Row
from atlas_rl.tasks.urn import UrnConfig, make_rows

ROWS = make_rows(UrnConfig(), 3, seed=0, id_prefix="q")


def stored(folder: Path) -> list[dict[str, Any]]:
    """What write_rows stores for ROWS, as verl's dataset hands it on."""
    path = folder / "good.parquet"
    write_rows(ROWS, "urn", path)
    return list(pq.read_table(path).to_pylist())


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None], schema: pa.Schema | None = None) -> Path:
    """The dataset with its row 1 changed."""
    rows = stored(folder)
    change(rows[1])
    path = folder / "changed.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return path


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "urn.parquet"
    write_rows(ROWS, "urn", path)
    assert read_rows(path) == ROWS
    assert [file.name for file in path.parent.iterdir()] == ["urn.parquet"]


def test_money_and_fingerprints_survive_exactly(tmp_path: Path) -> None:
    price = Decimal("0.10000000000000000000000001")
    candidates = tuple(
        Candidate(answer=answer, reasoning="{}", cost_usd=cost, timed_out=answer == "", is_correct=answer == "3")
        for answer, cost in [("3", price), ("", Decimal("0.80")), ("é\x00\u2028", Decimal("1E+1"))]
    )
    row = Row(
        question_id="g0", question="1+2?", benchmark="gsm8k", permutation_id="p012", max_explores=2,
        candidates=candidates, ground_truth="3", data_source="gsm8k", subset="easy", facts={"models": ["a", "b", "c"]},
    )  # fmt: skip
    write_rows([row], "gsm8k", tmp_path / "g.parquet")
    (back,) = read_rows(tmp_path / "g.parquet")
    assert back == row
    assert back.candidates[0].cost_usd == price
    assert back.candidate_fingerprint == row.candidate_fingerprint


def test_the_columns_are_those_that_verl_and_the_agent_loop_read(tmp_path: Path) -> None:
    row = stored(tmp_path)[2]
    assert list(row) == ["data_source", "agent_name", "ability", "prompt", "reward_model", "extra_info"]
    assert row["agent_name"] == "atlas_sequential"
    assert row["prompt"] == [
        {"role": "system", "content": "Find the hidden letter."},
        {"role": "user", "content": ROWS[2].question},
    ]
    assert row["reward_model"] == {"style": "rule", "ground_truth": ROWS[2].ground_truth}
    extra = row["extra_info"]
    assert list(extra) == [
        "index", "question_id", "question", "benchmark", "benchmark_spec", "permutation_id", "subset", "facts",
        "max_explores", "num_correct", "num_candidates", "cached_candidates", "tools_kwargs", "need_tools_kwargs",
    ]  # fmt: skip
    assert (extra["index"], extra["benchmark_spec"], extra["num_candidates"]) == (2, "urn", 8)
    assert extra["cached_candidates"][0]["cost_usd"] == "0.8"


def test_the_agent_loop_gets_its_row_even_if_lists_arrive_as_arrays(tmp_path: Path) -> None:
    row = stored(tmp_path)[0]
    extra = dict(row["extra_info"])
    extra["cached_candidates"] = np.array(extra["cached_candidates"], dtype=object)
    extra["max_explores"] = np.int64(extra["max_explores"])
    assert row_from_extra_info(extra, row["reward_model"], row["data_source"]) == ROWS[0]
    assert benchmark_from_extra_info(extra).name == "urn"


def set_extra(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one field of extra_info."""
    return lambda row: row["extra_info"].__setitem__(name, value)


def set_candidate(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one field of candidate 4."""
    return lambda row: row["extra_info"]["cached_candidates"][4].__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_candidate("cost_usd", "-0.5"), "candidate 4: cost_usd='-0.5': must be a decimal number of at least 0"),
        (set_candidate("cost_usd", "NaN"), "candidate 4: cost_usd='NaN': must be a decimal"),
        (set_candidate("cost_usd", "Infinity"), "candidate 4: cost_usd='Infinity': must be a decimal"),
        (set_candidate("cost_usd", "cheap"), "candidate 4: cost_usd='cheap': must be a decimal"),
        (set_candidate("cost_usd", None), "candidate 4: field 'cost_usd' is missing"),
        (set_candidate("answer", None), "candidate 4: field 'answer' is missing"),
        (set_extra("facts", "[1]"), "facts='[1]': must be a JSON object"),
        (set_extra("facts", '{"odds": NaN}'), "facts='{\"odds\": NaN}': holds NaN, which is no JSON"),
        (set_extra("max_explores", 0), "max_explores=0: Input should be greater than or equal to 1"),
        (set_extra("num_candidates", 7), "num_candidates=7: the cached candidates give 8"),
        (set_extra("num_correct", 9), "num_correct=9: the cached candidates give"),
        (set_extra("benchmark_spec", "gsm8k"), "benchmark_spec='gsm8k': describes 'gsm8k' but the row is of 'urn'"),
        (set_extra("question", "odds 1"), "prompt=.* differs from what benchmark 'urn' and the question give"),
        (set_extra("cached_candidates", None), "field 'cached_candidates' is missing"),
        (lambda row: row.update(agent_name="tool_agent"), "agent_name='tool_agent': must be 'atlas_sequential'"),
        (lambda row: row.update(data_source=None), "field 'data_source' is missing"),
        (lambda row: row.update(reward_model=None), "reward_model=None: must be a struct"),
        (lambda row: row.update(extra_info=None), "extra_info=None: must be a struct"),
    ],
)
def test_a_wrong_field_is_named_with_its_row_and_value(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = rewritten(tmp_path, change, SCHEMA)
    with pytest.raises(DataError, match=f"^{re.escape(str(path))} row 1.*{_pattern(message)}") as caught:
        read_rows(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cost_usd", 0.5, "row 0 candidate 0: cost_usd=0.5: must be a decimal number of at least 0, as a string"),
        ("is_correct", 1, "row 0 candidate 0: is_correct=1: must be true or false"),
        ("answer", 7, "row 0 candidate 0: answer=7: must be a string"),
    ],
)
def test_a_column_of_the_wrong_type_is_refused(tmp_path: Path, name: str, value: Any, message: str) -> None:
    rows = stored(tmp_path)
    for row in rows:
        for candidate in row["extra_info"]["cached_candidates"]:
            candidate[name] = value
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "typed.parquet")
    with pytest.raises(DataError, match=_pattern(message)):
        read_rows(tmp_path / "typed.parquet")


def test_a_candidate_field_that_no_row_has_is_named(tmp_path: Path) -> None:
    rows = stored(tmp_path)
    for row in rows:
        for candidate in row["extra_info"]["cached_candidates"]:
            del candidate["reasoning"]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "short.parquet")
    with pytest.raises(DataError, match="row 0 candidate 0: field 'reasoning' is missing"):
        read_rows(tmp_path / "short.parquet")


@pytest.mark.parametrize("column", SCHEMA.names)
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    table = pa.Table.from_pylist(stored(tmp_path), schema=SCHEMA).drop_columns([column])
    pq.write_table(table, tmp_path / "less.parquet")
    with pytest.raises(DataError, match=f"less.parquet: column '{column}' is missing"):
        read_rows(tmp_path / "less.parquet")


def test_files_that_hold_nothing_or_something_else_are_refused(tmp_path: Path) -> None:
    pq.write_table(SCHEMA.empty_table(), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match=r"empty\.parquet: no rows"):
        read_rows(tmp_path / "empty.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(DataError, match=r"text\.parquet: cannot be read as parquet"):
        read_rows(tmp_path / "text.parquet")
    with pytest.raises(DataError, match=r"none\.parquet: cannot be read as parquet"):
        read_rows(tmp_path / "none.parquet")


def test_what_cannot_be_a_dataset_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "urn.parquet"
    with pytest.raises(DataError, match="no rows to write"):
        write_rows([], "urn", path)
    with pytest.raises(DataError, match="row 1: question_id='q000000': the same question"):
        write_rows([ROWS[0], ROWS[0]], "urn", path)
    with pytest.raises(DataError, match="row 0: benchmark='urn': give its own benchmark_spec, not 'gsm8k'"):
        write_rows(ROWS, "gsm8k", path)
    with pytest.raises(ConfigError, match="benchmark_spec 'none'"):
        write_rows(ROWS, "none", path)
    surrogate = ROWS[1].model_copy(update={"question": "\ud83d"})
    with pytest.raises(DataError, match="row 1: UnicodeEncodeError"):
        write_rows([ROWS[0], surrogate], "urn", path)
    assert list(tmp_path.iterdir()) == []


def test_reading_a_row_leaves_verls_objects_alone(tmp_path: Path) -> None:
    row = stored(tmp_path)[0]
    before = copy.deepcopy(row)
    row_from_extra_info(row["extra_info"], row["reward_model"], row["data_source"])
    assert row == before


def _pattern(message: str) -> str:
    return ".*".join(re.escape(part) for part in message.split(".*"))
