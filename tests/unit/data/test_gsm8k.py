"""Rows from model solutions: the answer after the last A:, a seeded order, and prices from a table."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from atlas_rl.data.gsm8k import build_rows, load_prices, parse_solution
from atlas_rl.errors import ConfigError, DataError

PRICES = {"small": Decimal("0.1"), "large": Decimal("1")}


def solution(text: str, *, is_correct: bool = False) -> dict[str, Any]:
    """What the file stores for one model."""
    return {"is_correct": is_correct, "solution": text}


def line(**changes: Any) -> dict[str, Any]:
    """One line of a solutions file."""
    fields = {
        "question": "1+2?",
        "ground_truth": "1+2=<<1+2=3>>3\nA: 3",
        "small": solution("1+2=<<1+2=12>>12\nA: 12"),
        "large": solution("It is 3\nA: 3", is_correct=True),
    }
    return {**fields, **changes}


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    """A solutions file."""
    path = folder / "solutions.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("a=<<1+2=3>>3\nA: 3", "a=3", "3"),
        ("at Job A: $15\nso 4\nA: 25,400", "at Job A: $15\nso 4", "25,400"),
        ("cut in the mid", "cut in the mid", ""),
        ("cut in <<1/3=0.33", "cut in <<1/3=0.33", ""),
        ("A: 5", "", "5"),
        ("", "", ""),
    ],
)
def test_the_answer_stands_after_the_last_mark(text: str, reasoning: str, answer: str) -> None:
    assert parse_solution(text) == (reasoning, answer)


def test_a_row_holds_the_final_truth_and_every_model_once(tmp_path: Path) -> None:
    (row,) = build_rows(written(tmp_path, line()), prices=PRICES, seed=0)
    assert (row.question_id, row.question, row.ground_truth, row.max_explores) == ("gsm8k-00000", "1+2?", "3", 2)
    by_model = dict(zip(row.facts["models"], row.candidates, strict=True))
    assert set(by_model) == {"small", "large"}
    assert (by_model["small"].reasoning, by_model["small"].answer, by_model["small"].cost_usd) == (
        "1+2=12",
        "12",
        Decimal("0.1"),
    )
    assert [by_model["small"].is_correct, by_model["large"].is_correct] == [False, True]


def test_the_order_depends_on_seed_and_question_only(tmp_path: Path) -> None:
    path = written(tmp_path, *[line(question=f"q{number}") for number in range(20)])
    rows = build_rows(path, prices=PRICES, seed=1)
    assert build_rows(path, prices=PRICES, seed=1, offset=5, num_rows=3) == rows[5:8]
    assert {row.permutation_id for row in rows} == {"p01", "p10"}
    swapped = next(row for row in rows if row.permutation_id == "p10")
    assert swapped.facts["models"] == ["large", "small"]
    assert [row.permutation_id for row in build_rows(path, prices=PRICES, seed=2)] != [
        row.permutation_id for row in rows
    ]


def test_a_line_separator_inside_a_text_does_not_split_a_line(tmp_path: Path) -> None:
    path = tmp_path / "solutions.jsonl"
    path.write_text(json.dumps(line(question="one\u2028two"), ensure_ascii=False) + "\n", encoding="utf-8")
    assert build_rows(path, prices=PRICES, seed=0)[0].question == "one\u2028two"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra": 1}, "line 1: keys must be question, ground_truth and"),
        ({"small": {"solution": "A: 3"}}, "line 1 small: must be an object with a boolean is_correct"),
        ({"small": solution("")}, "line 1 small: solution must be a non-empty string, got ''"),
        ({"ground_truth": "three"}, "line 1: ground_truth has no answer after 'A:', got 'three'"),
        ({"question": 5}, "line 1: question must be a non-empty string, got 5"),
    ],
)
def test_a_line_that_is_not_as_described_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_rows(written(tmp_path, line(**changes)), prices=PRICES, seed=0)


def test_a_broken_line_a_short_file_and_no_file_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, line())
    with pytest.raises(DataError, match="has 1 lines, wanted 0 to 2"):
        build_rows(path, prices=PRICES, seed=0, num_rows=2)
    path.write_text(path.read_text() + '{"question": \n')
    with pytest.raises(DataError, match="line 2: no JSON"):
        build_rows(path, prices=PRICES, seed=0)
    with pytest.raises(DataError, match="give the path of a solutions file"):
        build_rows(tmp_path / "none.jsonl", prices=PRICES, seed=0)


@pytest.mark.parametrize("text", ["small: 0.1", "small: '-1'", "small: 'NaN'", "small: cheap", "[]", "{}"])
def test_a_price_that_is_no_exact_amount_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="price table"):
        load_prices(path)


def test_the_released_solutions_give_1319_rows_of_four(shared: Path) -> None:
    path = shared / "data" / "gsm8k_candidates" / "example_model_solutions.jsonl"
    rows = build_rows(path, prices=load_prices(), seed=0)
    candidates = [candidate for row in rows for candidate in row.candidates]
    assert (len(rows), len(candidates), len({row.question_id for row in rows})) == (1319, 5276, 1319)
    assert rows[0].ground_truth == "18"
    assert {row.max_explores for row in rows} == {4}
    assert len({row.permutation_id for row in rows}) == 24
    # 11 solutions were cut before their answer; the labels say how many of the rest are right
    assert sum(candidate.answer == "" for candidate in candidates) == 11
    assert sum(candidate.is_correct for candidate in candidates) == 286 + 515 + 458 + 742
    assert not any("<<" in candidate.reasoning and ">>" in candidate.reasoning for candidate in candidates)
