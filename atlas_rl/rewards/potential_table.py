"""A frozen table of potentials: the chance that a submit at a prefix is right, as counts and the prior beside them.

One parquet file; docs/rewards.md has its columns and the estimator. Values are made of the stored counts, as fractions:
the same file gives the same bits anywhere.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from atlas_rl.errors import DataError, RecordError, RewardError, blame
from atlas_rl.records.base import Record
from atlas_rl.records.breakdown import MAX_EXPLORES
from atlas_rl.records.json_text import from_json, to_json

TABLE_VERSION = 1
_VERSION_KEY = b"atlas_rl.potential_table_version"
_HEADER_KEY = b"atlas_rl.potential_table"
_REBUILD = "build the table again with atlas-rl potential build"

COLUMNS = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("permutation_id", pa.string(), nullable=False),
        pa.field("prefix", pa.int32(), nullable=False),
        pa.field("candidate_fingerprint", pa.string(), nullable=False),
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("right", pa.int64(), nullable=False),
        pa.field("total", pa.int64(), nullable=False),
    ]
)
"""Columns of a table, one row a prefix; the prefixes of a question follow each other from 0."""


class Pool(Record):
    """Counted submits of one benchmark, of all its questions together."""

    right: tuple[int, ...]
    """[longest prefix + 1] right submits at each prefix."""
    total: tuple[int, ...]
    """[longest prefix + 1] submits at each prefix."""

    @model_validator(mode="after")
    def _has_submits(self) -> Self:
        if len(self.right) != len(self.total):
            raise ValueError(f"{len(self.right)} right and {len(self.total)} total counts; the two are parallel")
        _check_counts("pool", self.right, self.total)
        if not sum(self.total):
            raise ValueError("pool without a submit has no mean; give a run that submitted")
        return self


class CountedRun(Record):
    """A run that the counts are from."""

    run_id: str
    trajectories: int = Field(ge=0)
    """Stored rows, superseded ones included."""
    submits: int = Field(ge=0)
    """Rows that were counted."""


class TableHeader(Record):
    """What a table says beside its rows."""

    strength: Decimal = Field(gt=0)
    """Submits that the prior is worth."""
    pools: dict[str, Pool]
    """By benchmark."""
    runs: tuple[CountedRun, ...]
    partitions: tuple[str, ...]
    """Partitions whose submits were counted."""
    from_step: int = Field(ge=0)
    """First global step whose submits were counted."""


class CountedRow(NamedTuple):
    """One question under one order of its candidates, with what was counted at each prefix."""

    question_id: str
    permutation_id: str
    candidate_fingerprint: str
    benchmark: str
    right: tuple[int, ...]
    """[max_explores + 1] right submits after exactly so many explores."""
    total: tuple[int, ...]
    """[max_explores + 1] submits after exactly so many explores."""


@dataclass(frozen=True, slots=True)
class PotentialTable:
    """A table in memory; a ``Potential`` whose look-up is a dictionary access."""

    path: str
    """Names the table in messages."""
    sha256: str
    """Of the bytes of the file."""
    header: TableHeader
    rows: Mapping[tuple[str, str], CountedRow]
    """By question_id and permutation_id."""
    priors: Mapping[str, tuple[Fraction, ...]]
    """By benchmark: the mean that a prefix is shrunk towards."""

    def value(self, question_id: str, permutation_id: str, candidate_fingerprint: str, prefix: int) -> Fraction:
        """Chance in [0, 1] that a submit at the prefix is right.

        Raises:
            RewardError: the table lacks the row or the prefix, or has the row with other candidates.
        """
        row = self.rows.get((question_id, permutation_id))
        if row is None or not 0 <= prefix < len(row.total):
            raise RewardError(f"{self.path} {_lack(row, question_id, permutation_id, prefix)}")
        if row.candidate_fingerprint != candidate_fingerprint:
            raise RewardError(
                f"{self.path} has question {question_id!r}, permutation {permutation_id!r} with candidate_fingerprint="
                f"{row.candidate_fingerprint}, not {candidate_fingerprint}; build it from runs on the same candidates"
            )
        strength = self.header.strength.as_integer_ratio()
        return _shrunk(row.right[prefix], row.total[prefix], self.priors[row.benchmark][prefix], strength)


def encode_table(header: TableHeader, rows: Iterable[CountedRow]) -> bytes:
    """The file; the same counts give the same bytes under one version of pyarrow.

    Args:
        header: what the rows share.
        rows: in any order; they are sorted by question and permutation.
    """
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS.names}
    for row in sorted(rows):
        for prefix, (right, total) in enumerate(zip(row.right, row.total, strict=True)):
            columns["question_id"].append(row.question_id)
            columns["permutation_id"].append(row.permutation_id)
            columns["prefix"].append(prefix)
            columns["candidate_fingerprint"].append(row.candidate_fingerprint)
            columns["benchmark"].append(row.benchmark)
            columns["right"].append(right)
            columns["total"].append(total)
    metadata = {_VERSION_KEY: str(TABLE_VERSION).encode(), _HEADER_KEY: to_json(header)}
    sink = io.BytesIO()
    with blame(DataError, "potential table: a text cannot be stored"):
        pq.write_table(pa.table(columns, schema=COLUMNS.with_metadata(metadata)), sink, compression="zstd")
    return sink.getvalue()


_tables: dict[str, PotentialTable] = {}
"""Tables that this process has read, by sha256."""


def read_table(path: str) -> PotentialTable:
    """Read and check a table; a file with bytes that were read before is not parsed again.

    Raises:
        DataError: no such file, no table, another version, or rows that contradict each other.
    """
    if not Path(path).is_file():
        raise DataError(f"{path}: no such file; {_REBUILD}, or give the path from {Path.cwd()}")
    with blame(DataError, f"{path}: cannot be read"):
        data = Path(path).read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 not in _tables:
        _tables[sha256] = _decode(path, sha256, data)
    return replace(_tables[sha256], path=path)


def _decode(path: str, sha256: str, data: bytes) -> PotentialTable:
    with blame(DataError, f"{path}: cannot be read as parquet"):
        table = pq.ParquetFile(pa.BufferReader(data)).read()
    header = _header(path, table.schema)
    rows: dict[tuple[str, str], CountedRow] = {}
    for row in _rows(path, table):
        key = (row.question_id, row.permutation_id)
        if key in rows:
            raise DataError(f"{path}: {_name(*key)} comes twice; {_REBUILD}")
        pool = header.pools.get(row.benchmark)
        if pool is None or len(pool.total) < len(row.total):
            raise DataError(
                f"{path}: {_name(*key)} has {len(row.total)} prefixes of benchmark {row.benchmark!r}, the stored prior "
                f"has {0 if pool is None else len(pool.total)}; {_REBUILD}"
            )
        rows[key] = row
    priors = {name: _pool_means(pool, header.strength) for name, pool in header.pools.items()}
    return PotentialTable(path=path, sha256=sha256, header=header, rows=rows, priors=priors)


def _header(path: str, schema: pa.Schema) -> TableHeader:
    metadata = schema.metadata or {}
    if _VERSION_KEY not in metadata or _HEADER_KEY not in metadata:
        raise DataError(f"{path}: not a potential table, its parquet metadata lacks {_HEADER_KEY.decode()}; {_REBUILD}")
    version = metadata[_VERSION_KEY].decode(errors="replace")
    if version != str(TABLE_VERSION):
        raise DataError(
            f"{path}: potential table of version {version}, this program reads {TABLE_VERSION}; build it again with "
            "this version, or read it with the one that wrote it"
        )
    if not schema.remove_metadata().equals(COLUMNS):
        shown = [f"{field.name}: {field.type}" for field in schema]
        raise DataError(f"{path}: columns {shown} are not those of a potential table; {_REBUILD}")
    try:
        return from_json(TableHeader, metadata[_HEADER_KEY])
    except RecordError as error:
        raise DataError(f"{path}: {error}; {_REBUILD}") from error


def _rows(path: str, table: pa.Table) -> Iterator[CountedRow]:
    """Gather the prefixes of each question, which must follow each other."""
    columns = [table.column(name).to_pylist() for name in COLUMNS.names]
    # A question starts where the prefix is 0, which also keeps two equal keys apart.
    starts = [place for place, prefix in enumerate(columns[2]) if prefix == 0]
    if table.num_rows and (not starts or starts[0]):
        raise DataError(f"{path} row 0: prefix={columns[2][0]}, a question starts with prefix 0; {_REBUILD}")
    for start, end in zip(starts, [*starts[1:], table.num_rows], strict=True):
        question_id, permutation_id, _, fingerprint, benchmark, _, _ = (column[start] for column in columns)
        for place in range(start, end):
            told = [columns[at][place] for at in (0, 1, 2, 3, 4)]
            if told != [question_id, permutation_id, place - start, fingerprint, benchmark]:
                raise DataError(
                    f"{path} row {place}: {_name(told[0], told[1])}, prefix {told[2]} does not follow prefix "
                    f"{place - start - 1} of {_name(question_id, permutation_id)}; {_REBUILD}"
                )
        right, total = tuple(columns[5][start:end]), tuple(columns[6][start:end])
        if end - start > MAX_EXPLORES + 1:
            name = _name(question_id, permutation_id)
            raise DataError(f"{path}: {name} has {end - start} prefixes, at most {MAX_EXPLORES + 1} exist; {_REBUILD}")
        try:
            _check_counts("counts", right, total)
        except ValueError as error:
            raise DataError(f"{path}: {_name(question_id, permutation_id)}: {error}; {_REBUILD}") from error
        yield CountedRow(question_id, permutation_id, fingerprint, benchmark, right, total)


def _check_counts(what: str, rights: Sequence[int], totals: Sequence[int]) -> None:
    for prefix, (right, total) in enumerate(zip(rights, totals, strict=True)):
        if not 0 <= right <= total:
            raise ValueError(f"{what} of prefix {prefix}: right={right} of total={total}, must lie in 0..total")


def _pool_means(pool: Pool, strength: Decimal) -> tuple[Fraction, ...]:
    """Mean of each prefix, itself shrunk towards the mean over all prefixes: a prefix may have no submit at all."""
    mean = Fraction(sum(pool.right), sum(pool.total))
    ratio = strength.as_integer_ratio()
    return tuple(_shrunk(right, total, mean, ratio) for right, total in zip(pool.right, pool.total, strict=True))


def _shrunk(right: int, total: int, prior: Fraction, strength: tuple[int, int]) -> Fraction:
    """(right + strength * prior) / (total + strength), reduced once."""
    top, bottom = strength
    return Fraction(
        right * bottom * prior.denominator + top * prior.numerator, prior.denominator * (total * bottom + top)
    )


def _name(question_id: str, permutation_id: str) -> str:
    return f"question {question_id!r}, permutation {permutation_id!r}"


def _lack(row: CountedRow | None, question_id: str, permutation_id: str, prefix: int) -> str:
    name = _name(question_id, permutation_id)
    if row is None:
        return f"has no {name}, prefix {prefix}; build it with --cover FILE.parquet of the dataset"
    return f"has prefixes 0..{len(row.total) - 1} of {name}, not {prefix}; build it for rows with more explores"
