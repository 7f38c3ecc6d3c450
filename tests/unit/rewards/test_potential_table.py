from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from potential_tables import header, row, written

from atlas_rl.errors import DataError, RewardError
from atlas_rl.rewards.potential_table import Pool, encode_table, read_table

Q1, Q2 = ("q1", "p", "f1"), ("q2", "p", "f2")
ROWS = [row(Q1, [0, 3], [0, 4]), row(Q2, [0, 0], [0, 1])]
Columns = dict[str, list[Any]]


def test_a_value_is_the_counts_and_the_prior_exactly(tmp_path: Path) -> None:
    table = written(tmp_path / "t.parquet", ROWS, strength="2")
    mean = Fraction(3, 5)
    #                                               right  strength  prior     total strength
    prior_0, prior_1 = mean, (3 + 2 * mean) / (5 + 2)
    assert table.value(*Q1, 0) == prior_0
    assert table.value(*Q1, 1) == (3 + 2 * prior_1) / (4 + 2)
    assert table.value(*Q2, 1) == (0 + 2 * prior_1) / (1 + 2)


def test_the_file_holds_the_counts_under_the_documented_columns_and_metadata(tmp_path: Path) -> None:
    written(tmp_path / "t.parquet", reversed(ROWS))
    stored = pq.read_table(tmp_path / "t.parquet")
    assert stored.to_pydict() == {
        "question_id": ["q1", "q1", "q2", "q2"],
        "permutation_id": ["p", "p", "p", "p"],
        "prefix": [0, 1, 0, 1],
        "candidate_fingerprint": ["f1", "f1", "f2", "f2"],
        "benchmark": ["urn", "urn", "urn", "urn"],
        "right": [0, 3, 0, 0],
        "total": [0, 4, 0, 1],
    }
    assert stored.schema.metadata[b"atlas_rl.potential_table_version"] == b"1"
    assert b'"strength":"4"' in stored.schema.metadata[b"atlas_rl.potential_table"]


def test_equal_counts_give_equal_bytes_and_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.parquet", ROWS), written(tmp_path / "b.parquet", reversed(ROWS))
    assert first.sha256 == second.sha256
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert (first.path, second.path) == (f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet")
    assert first.rows is second.rows, "the same bytes are parsed once"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("q3", "p", "f1", 0), "has no question 'q3', permutation 'p', prefix 0; build it with --cover FILE.parquet"),
        (("q1", "other", "f1", 0), "has no question 'q1', permutation 'other', prefix 0"),
        (("q1", "p", "f1", 2), "has prefixes 0..1 of question 'q1', permutation 'p', not 2"),
        (("q1", "p", "f1", -1), "has prefixes 0..1 of question 'q1', permutation 'p', not -1"),
        (("q1", "p", "f9", 0), "with candidate_fingerprint=f1, not f9; build it from runs on the same candidates"),
    ],
)
def test_what_the_table_lacks_is_an_error(tmp_path: Path, asked: tuple[str, str, str, int], said: str) -> None:
    table = written(tmp_path / "t.parquet", ROWS)
    with pytest.raises(RewardError) as caught:
        table.value(*asked)
    assert said in str(caught.value)
    assert str(tmp_path / "t.parquet") in str(caught.value)


def _set(column: str, place: int, value: Any) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        columns[column][place] = value

    return change


def _drop(place: int) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        for values in columns.values():
            del values[place]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_drop(0), "row 0: prefix=1, a question starts with prefix 0"),
        (_drop(2), "row 2: question 'q2', permutation 'p', prefix 1 does not follow prefix 1 of question 'q1'"),
        (_set("prefix", 1, 2), "row 1: question 'q1', permutation 'p', prefix 2 does not follow prefix 0"),
        (_set("candidate_fingerprint", 1, "f2"), "row 1: question 'q1', permutation 'p', prefix 1 does not follow"),
        (_set("right", 1, 5), "question 'q1', permutation 'p': counts of prefix 1: right=5 of total=4"),
        (_set("right", 3, -1), "question 'q2', permutation 'p': counts of prefix 1: right=-1 of total=1"),
        (lambda columns: columns.update(question_id=["q1"] * 4), "question 'q1', permutation 'p' comes twice"),
        (lambda columns: columns.update(benchmark=["omr"] * 4), "of benchmark 'omr', the stored prior has 0"),
    ],
)  # fmt: skip
def test_rows_that_contradict_each_other_are_refused(
    tmp_path: Path, change: Callable[[Columns], None], said: str
) -> None:
    path = tmp_path / "t.parquet"
    written(path, ROWS)
    stored = pq.read_table(path)
    columns = stored.to_pydict()
    change(columns)
    if "comes twice" in said:
        columns["candidate_fingerprint"] = ["f1"] * 4
    pq.write_table(pa.table(columns, schema=stored.schema), path)
    with pytest.raises(DataError) as caught:
        read_table(str(path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_table_of_this_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with pytest.raises(DataError, match=r"t\.parquet: no such file; build the table again"):
        read_table(str(path))
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"t\.parquet: cannot be read as parquet"):
        read_table(str(path))
    written(tmp_path / "good.parquet", ROWS)
    stored = pq.read_table(tmp_path / "good.parquet")
    pq.write_table(stored.replace_schema_metadata(None), path)
    with pytest.raises(DataError, match="not a potential table, its parquet metadata lacks atlas_rl"):
        read_table(str(path))
    newer = {**stored.schema.metadata, b"atlas_rl.potential_table_version": b"2"}
    pq.write_table(stored.replace_schema_metadata(newer), path)
    with pytest.raises(DataError, match="potential table of version 2, this program reads 1"):
        read_table(str(path))
    spoiled = {**stored.schema.metadata, b"atlas_rl.potential_table": b'{"strength":"0"}'}
    pq.write_table(stored.replace_schema_metadata(spoiled), path)
    with pytest.raises(DataError, match="not a valid TableHeader: strength: Input should be greater than 0"):
        read_table(str(path))
    pq.write_table(stored.drop_columns(["right"]), path)
    with pytest.raises(DataError, match="are not those of a potential table"):
        read_table(str(path))


def test_a_pool_without_a_submit_has_no_mean() -> None:
    with pytest.raises(ValueError, match="pool without a submit has no mean"):
        Pool(right=(0, 0), total=(0, 0))


def test_a_look_up_costs_the_same_in_a_large_table(tmp_path: Path) -> None:
    keys = [(f"q{number}", "p", "f") for number in range(2000)]
    table = written(tmp_path / "t.parquet", [row(key, [1] * 9, [2] * 9) for key in keys])
    assert len(table.rows) == 2000
    assert table.value(*keys[1999], 8) == table.value(*keys[0], 0) == Fraction(1, 2)


def test_strength_weighs_the_prior_against_the_counts(tmp_path: Path) -> None:
    pool = Pool(right=(0,), total=(10,))
    values = []
    for strength in ("0.000001", "1", "1000000"):
        path = tmp_path / f"{strength}.parquet"
        path.write_bytes(encode_table(header(pool, strength=strength), [row(Q1, [1], [1])]))
        values.append(read_table(str(path)).value(*Q1, 0))
    assert values == [1 / (1 + Fraction(Decimal("0.000001"))), Fraction(1, 2), Fraction(1, 1_000_001)]
