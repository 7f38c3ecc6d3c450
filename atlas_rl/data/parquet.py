"""Datasets as verl reads them: parquet files, one row a question, checked on the way in and on the way out.

verl hands the columns of a row to the agent loop as Python objects: `extra_info` as a dict, its lists as lists or
numpy arrays, depending on the way they took.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from atlas_rl.data.fields import (
    REBUILD,
    as_list,
    as_mapping,
    count_field,
    field,
    flag_field,
    json_object,
    money_field,
    refuse,
    text_field,
)
from atlas_rl.errors import DataError, blame
from atlas_rl.tasks.benchmark import Benchmark, load_benchmark
from atlas_rl.tasks.row import Candidate, Row
from atlas_rl.tasks.sequential import messages

AGENT_NAME = "atlas_sequential"
"""The agent loop that verl runs for these rows."""

_TEXTS = ("question_id", "question", "benchmark", "permutation_id", "subset")

_CANDIDATE = pa.struct(
    [
        ("answer", pa.string()),
        ("reasoning", pa.string()),
        ("cost_usd", pa.string()),  # a decimal number as text: money is exact
        ("timed_out", pa.bool_()),
        ("is_correct", pa.bool_()),
    ]
)
# verl looks for tools_kwargs by tool name; parquet has no struct without fields, so explore names its question.
_TOOLS_KWARGS = pa.struct([("explore", pa.struct([("create_kwargs", pa.struct([("question_id", pa.string())]))]))])
SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("agent_name", pa.string()),
        ("ability", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("index", pa.int64()),
                    ("question_id", pa.string()),
                    ("question", pa.string()),
                    ("benchmark", pa.string()),
                    ("benchmark_spec", pa.string()),
                    ("permutation_id", pa.string()),
                    ("subset", pa.string()),
                    ("facts", pa.string()),
                    ("max_explores", pa.int64()),
                    ("num_correct", pa.int64()),
                    ("num_candidates", pa.int64()),
                    ("cached_candidates", pa.list_(_CANDIDATE)),
                    ("tools_kwargs", _TOOLS_KWARGS),
                    ("need_tools_kwargs", pa.bool_()),
                ]
            ),
        ),
    ]
)
"""One schema for all benchmarks, so that verl can concatenate their files. `facts` is a JSON object as text."""


def write_rows(rows: Sequence[Row], benchmark_spec: str, path: Path) -> None:
    """Write a dataset in row order; the file appears whole or not at all, and replaces an older one.

    Args:
        rows: At least one, all of the benchmark; a question may come again under another permutation_id.
        benchmark_spec: Name or YAML path of the surface that the rows use, stored as given.
        path: The parquet file; its folder is made.

    Raises:
        ConfigError: no such benchmark.
        DataError: no rows, a row of another benchmark, the same row twice, or a text that UTF-8 cannot hold.
    """
    benchmark = load_benchmark(benchmark_spec)
    if not rows:
        raise DataError(f"{path}: no rows to write; a dataset needs at least one")
    seen: set[tuple[str, str]] = set()
    batches = []
    for index, row in enumerate(rows):
        where = f"{path} row {index}"
        if row.benchmark != benchmark.name:
            refuse(where, "benchmark", row.benchmark, f"give its own benchmark_spec, not {benchmark_spec!r}")
        if (row.question_id, row.permutation_id) in seen:
            refuse(where, "question_id", row.question_id, "the same question and permutation came before; drop one")
        seen.add((row.question_id, row.permutation_id))
        with blame(DataError, where):
            batches.append(pa.RecordBatch.from_pylist([_stored(row, benchmark, benchmark_spec, index)], schema=SCHEMA))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(pa.Table.from_batches(batches).combine_chunks(), unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_rows(path: Path) -> list[Row]:
    """Read a dataset, checking every field of every row.

    Raises:
        ConfigError: a row names a benchmark that does not exist.
        DataError: no such file, no parquet, no rows, a missing column, or a field that is not what it must be; the
            message names the file, the row (from 0), the field and the value.
    """
    with blame(DataError, f"{path}: cannot be read as parquet"):
        table = pq.read_table(path)
    for name in SCHEMA.names:
        if name not in table.column_names:
            raise DataError(f"{path}: column {name!r} is missing, there are {table.column_names}; {REBUILD}")
    if not table.num_rows:
        raise DataError(f"{path}: no rows; a dataset needs at least one, {REBUILD}")
    rows = []
    for index, stored in enumerate(row for batch in table.to_batches(1024) for row in batch.to_pylist()):
        where = f"{path} row {index}"
        row = row_from_extra_info(stored["extra_info"], stored["reward_model"], stored["data_source"], where=where)
        benchmark = benchmark_from_extra_info(stored["extra_info"], where=where)
        if stored["agent_name"] != AGENT_NAME:
            refuse(where, "agent_name", stored["agent_name"], f"must be {AGENT_NAME!r}")
        if stored["prompt"] != messages(benchmark, row):
            remedy = f"differs from what benchmark {benchmark.name!r} and the question give; {REBUILD}"
            refuse(where, "prompt", stored["prompt"], remedy)
        rows.append(row)
    return rows


def row_from_extra_info(extra_info: Any, reward_model: Any, data_source: Any, *, where: str = "row") -> Row:
    """The row that verl's columns hold; what the agent loop calls.

    Args:
        extra_info: The column of that name: a mapping, lists as lists or numpy arrays.
        reward_model: The column of that name.
        data_source: The column of that name.
        where: What messages call the row.

    Raises:
        DataError: a field is missing or is not what it must be.
    """
    extra = as_mapping(where, "extra_info", extra_info)
    candidates = as_list(where, "cached_candidates", field(where, extra, "cached_candidates"))
    cached = tuple(_candidate(where, place, candidate) for place, candidate in enumerate(candidates))
    num_correct = sum(candidate.is_correct for candidate in cached)
    for name, number in (("num_candidates", len(cached)), ("num_correct", num_correct)):
        if count_field(where, extra, name) != number:
            refuse(where, name, extra[name], f"the cached candidates give {number}; {REBUILD}")
    texts = {name: text_field(where, extra, name) for name in _TEXTS}
    try:
        return Row(
            **texts,
            max_explores=count_field(where, extra, "max_explores"),
            candidates=cached,
            ground_truth=text_field(where, as_mapping(where, "reward_model", reward_model), "ground_truth"),
            data_source=text_field(where, {"data_source": data_source}, "data_source"),
            facts=json_object(where, "facts", text_field(where, extra, "facts")),
        )
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "row"
        raise DataError(f"{where}: {name}={str(first['input'])[:200]}: {first['msg']}; {REBUILD}") from error


def benchmark_from_extra_info(extra_info: Any, *, where: str = "row") -> Benchmark:
    """The surface that a row names.

    Raises:
        ConfigError: no such surface.
        DataError: ``benchmark_spec`` is missing, or describes another benchmark than the row's.
    """
    extra = as_mapping(where, "extra_info", extra_info)
    spec, name = text_field(where, extra, "benchmark_spec"), text_field(where, extra, "benchmark")
    benchmark = load_benchmark(spec)
    if benchmark.name != name:
        refuse(where, "benchmark_spec", spec, f"describes {benchmark.name!r} but the row is of {name!r}; {REBUILD}")
    return benchmark


def _stored(row: Row, benchmark: Benchmark, benchmark_spec: str, index: int) -> dict[str, Any]:
    return {
        "data_source": row.data_source,
        "agent_name": AGENT_NAME,
        "ability": row.benchmark,
        "prompt": messages(benchmark, row),
        "reward_model": {"style": "rule", "ground_truth": row.ground_truth},
        "extra_info": {
            "index": index,
            "question_id": row.question_id,
            "question": row.question,
            "benchmark": row.benchmark,
            "benchmark_spec": benchmark_spec,
            "permutation_id": row.permutation_id,
            "subset": row.subset,
            "facts": json.dumps(row.facts, sort_keys=True, allow_nan=False),
            "max_explores": row.max_explores,
            "num_correct": sum(candidate.is_correct for candidate in row.candidates),
            "num_candidates": len(row.candidates),
            "cached_candidates": [
                {**candidate.model_dump(), "cost_usd": str(candidate.cost_usd)} for candidate in row.candidates
            ],
            "tools_kwargs": {"explore": {"create_kwargs": {"question_id": row.question_id}}},
            "need_tools_kwargs": False,
        },
    }


def _candidate(where: str, place: int, stored: Any) -> Candidate:
    where = f"{where} candidate {place}"
    fields = as_mapping(where, "cached_candidates", stored)
    return Candidate(
        answer=text_field(where, fields, "answer"),
        reasoning=text_field(where, fields, "reasoning"),
        cost_usd=money_field(where, fields, "cost_usd"),
        timed_out=flag_field(where, fields, "timed_out"),
        is_correct=flag_field(where, fields, "is_correct"),
    )
