"""Rows of grade-school math from a file of model solutions: each line holds a question and one solution a model.

Shown reasoning is the solution up to its last `A:`, without calculator annotations (`<<3*4=12>>`): they are marks for
a tool that the policy has not. A solution that was cut before its `A:` is a candidate with an empty answer.
"""

import json
import random
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import yaml

from atlas_rl.errors import ConfigError, DataError
from atlas_rl.records.breakdown import MAX_EXPLORES
from atlas_rl.tasks.row import Candidate, Row

PRICES = Path(__file__).with_name("gsm8k_prices.yaml")
"""The price table that comes with atlas_rl."""

_ANNOTATION = re.compile(r"<<[^<>\n]*>>")


def load_prices(path: Path = PRICES) -> dict[str, Decimal]:
    """Read a price table: model name to US dollars for one solution, in file order.

    Raises:
        ConfigError: no such file, or a price that is not a quoted decimal of at least 0.
    """
    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"price table {path}: {' '.join(str(error).split())}") from error
    if not isinstance(table, dict) or not 1 <= len(table) <= MAX_EXPLORES:
        raise ConfigError(f'price table {path}: needs 1 to {MAX_EXPLORES} lines such as 6b_finetuning: "0.10"')
    return {str(model): _price(path, str(model), text) for model, text in table.items()}


def build_rows(
    solutions: Path, *, prices: Mapping[str, Decimal], seed: int, num_rows: int | None = None, offset: int = 0
) -> list[Row]:
    """Build rows from consecutive lines of a solutions file; the candidates of each are put in a seeded order.

    A row depends on its line, the prices and the seed, not on which other lines are taken.

    Args:
        solutions: JSON lines with question, ground_truth and, for each model of ``prices``, {is_correct, solution}.
        prices: What reading one solution of each model costs; names exactly the models of the file.
        seed: Together with the question id it decides the order of the candidates.
        num_rows: Lines to take; None: all that follow ``offset``.
        offset: Lines to pass over first, so that partitions can be disjoint.

    Raises:
        DataError: the file cannot be read, has fewer lines, or holds a line that is not as described.
    """
    if offset < 0 or (num_rows is not None and num_rows < 1):
        raise DataError(f"{solutions}: need offset >= 0 and num_rows >= 1, got {offset} and {num_rows}")
    try:
        lines = solutions.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{solutions}: {error}; give the path of a solutions file") from error
    end = len(lines) if num_rows is None else offset + num_rows
    if end > len(lines) or offset >= end:
        raise DataError(f"{solutions}: has {len(lines)} lines, wanted {offset} to {end}; lower offset or num_rows")
    numbers = range(offset, end)
    return [_row(f"{solutions} line {number + 1}", lines[number], number, prices, seed) for number in numbers]


def parse_solution(solution: str) -> tuple[str, str]:
    """Split a solution into its shown reasoning and the answer after its last `A:`; no `A:`, no answer."""
    text = _ANNOTATION.sub("", solution)
    reasoning, mark, answer = text.rpartition("A:")
    return (reasoning.strip(), answer.strip()) if mark else (text.strip(), "")


def _row(where: str, line: str, number: int, prices: Mapping[str, Decimal], seed: int) -> Row:
    try:
        stored = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: no JSON: {error}") from error
    if not isinstance(stored, dict) or set(stored) != {"question", "ground_truth", *prices}:
        keys = sorted(stored) if isinstance(stored, dict) else type(stored).__name__
        raise DataError(f"{where}: keys must be question, ground_truth and {sorted(prices)}, got {keys}")
    question_id = f"gsm8k-{number:05d}"
    order = list(range(len(prices)))
    random.Random(f"gsm8k {seed} {question_id}").shuffle(order)
    models = [list(prices)[place] for place in order]
    return Row(
        question_id=question_id,
        question=_string(where, stored, "question"),
        benchmark="gsm8k",
        permutation_id="p" + "".join(str(place) for place in order),
        max_explores=len(prices),
        candidates=tuple(_candidate(f"{where} {model}", stored[model], prices[model]) for model in models),
        ground_truth=_ground_truth(where, _string(where, stored, "ground_truth")),
        data_source="gsm8k",
        facts={"models": models},
    )


def _candidate(where: str, stored: Any, price: Decimal) -> Candidate:
    if not isinstance(stored, dict) or not isinstance(stored.get("is_correct"), bool):
        raise DataError(f"{where}: must be an object with a boolean is_correct, got {str(stored)[:100]!r}")
    reasoning, answer = parse_solution(_string(where, stored, "solution"))
    return Candidate(
        answer=answer, reasoning=reasoning, cost_usd=price, timed_out=False, is_correct=stored["is_correct"]
    )


def _ground_truth(where: str, solution: str) -> str:
    answer = parse_solution(solution)[1]
    if not answer:
        raise DataError(f"{where}: ground_truth has no answer after 'A:', got {solution[-100:]!r}; fix the line")
    return answer


def _string(where: str, stored: Mapping[str, Any], name: str) -> str:
    value = stored.get(name)
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: {name} must be a non-empty string, got {value!r}")
    return value


def _price(path: Path, model: str, text: Any) -> Decimal:
    try:
        price = Decimal(text) if isinstance(text, str) else Decimal("NaN")
    except InvalidOperation:
        price = Decimal("NaN")
    if not price.is_finite() or price < 0:
        raise ConfigError(f"price table {path}: {model} must be a quoted decimal of at least 0, got {text!r}")
    return price
