"""Scoring a stored row again, and what differs from what was stored, to the bit."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from math import fsum
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from atlas_rl.errors import RecordError, RewardError
from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.scoring import AnyRow, read_for_scoring
from atlas_rl.records.store import StoredRow, TrajectoryStore
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import Partition, TerminalReason
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.placement import placed_values
from atlas_rl.rewards.potentials import Potential
from atlas_rl.rewards.recorded_potential import of_record
from atlas_rl.rewards.score import score

_FLOAT_NAMES = tuple(name for name, info in Breakdown.model_fields.items() if info.annotation is float)
_floats = itemgetter(*_FLOAT_NAMES)
ROWS_TOGETHER = 16
"""Rows that take each stage together: its code and tables are then in the processor's caches for all but the first."""
Trace = list[tuple[int, float]]
"""Offset and value of each entry of a reward trace."""
_pack_floats = struct.Struct(f"<{len(_FLOAT_NAMES)}d").pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How the rows of a store are scored again."""

    reward: RewardConfig
    potential: Potential
    run_id: str | None
    """Run that every row must be of; None: any."""
    wants_rows: bool
    """Whether ``ShardReplay.rows`` is filled, else ``changes`` is."""


class RowKey(NamedTuple):
    """Which row something is about."""

    run_id: str
    uid: str
    session_id: int
    attempt_id: int
    partition: Partition
    step: int
    question_id: str


class FieldChange(NamedTuple):
    """One field that another value came out of."""

    key: RowKey
    field: str
    """Name in the breakdown, or reward_trace or reward_score."""
    stored: str
    new: str


class Amounts(NamedTuple):
    """The figures of a reward that a comparison shows."""

    objective: float
    final_reward: float
    training_reward: float
    utility: float
    penalty: float
    format_score: float
    overlong_penalty: float
    terminal_reward: float


class ComparedRow(NamedTuple):
    """One row under two rewards."""

    key: RowKey
    benchmark: str
    subset: str
    terminal_reason: TerminalReason
    acc: float
    num_explores: int
    cost_total: Decimal
    old: Amounts
    new: Amounts
    is_equal: bool
    """Whether everything that was stored came out again, to the bit."""


@dataclass(slots=True, kw_only=True)
class ShardReplay:
    """What came of the rows of one shard."""

    file: Path
    num_rows: int = 0
    num_equal: int = 0
    changes: list[FieldChange] = field(default_factory=list)
    rows: list[ComparedRow] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    """What a kill cut short and reading skipped."""


def replay_shard(folder: Path, file: Path, replay: Replay, grades: Mapping[int, Grade]) -> ShardReplay:
    """Score every row of one shard again; nothing is written.

    Args:
        folder: the store.
        file: one of its shards.
        replay: the reward.
        grades: verdicts that take the place of the stored ones, by the row's place in the shard.

    Raises:
        RecordError: a row cannot be read, or is of another run; the message names it and the field.
        RewardError: a row cannot be scored; likewise.
    """
    store = TrajectoryStore(folder)
    found = ShardReplay(file=file)
    headers = store.headers([file])
    while some := list(islice(headers, ROWS_TOGETHER)):
        rows = [_read(stored, replay) for stored in some]
        scored = [
            _scored(stored, row, replay, grades.get(stored.row, row.grade))
            for stored, row in zip(some, rows, strict=True)
        ]
        for stored, row, new in zip(some, rows, scored, strict=True):
            _add(found, stored, row, new, replay)
    found.torn = [f"{torn.file}: after {torn.num_rows_before} whole rows, {torn.what}" for torn in store.torn]
    return found


def _read(stored: StoredRow, replay: Replay) -> AnyRow:
    row = read_for_scoring(stored.header) or stored.decode()
    if replay.run_id not in (None, row.run_id):
        raise RecordError(f"{stored.where}: run_id={row.run_id!r} in the folder of run {replay.run_id!r}; move it")
    return row


def _scored(stored: StoredRow, row: AnyRow, replay: Replay, grade: Grade) -> tuple[Breakdown, Trace]:
    try:
        scored = score(
            row.episode,
            grade,
            config=replay.reward,
            potential=of_record(replay.potential, row.extra),
            subset=row.reward.subset,
        )
        values = placed_values(scored)
    except RewardError as error:
        raise RewardError(f"{stored.where}: {error}") from error
    return scored.breakdown, [(slot.offset, value) for slot, value in zip(scored.slots, values, strict=True)]


def _add(found: ShardReplay, stored: StoredRow, row: AnyRow, new: tuple[Breakdown, Trace], replay: Replay) -> None:
    breakdown, trace = new
    changes = list(_changes(row, breakdown, trace))
    if changes:
        _check_trace(stored, row)
    if changes and not replay.wants_rows:
        key = _key(row)
        found.changes += [FieldChange(key, *change) for change in changes]
    found.num_rows += 1
    found.num_equal += not changes
    if replay.wants_rows:
        found.rows.append(_compared(row, breakdown, is_equal=not changes))


def changed_fields(stored: Breakdown, new: Breakdown) -> list[str]:
    """Names of the fields that differ in any bit: -0.0 is not 0.0, and 0.80 USD is not 0.8 USD."""
    left, right = stored.__dict__, new.__dict__
    if (
        left == right
        and _pack_floats(*_floats(left)) == _pack_floats(*_floats(right))
        and _is_same_decimal(left["cost"], right["cost"])
        and _is_same_decimal(left["cost_total"], right["cost_total"])
    ):
        return []
    return [name for name in Breakdown.model_fields if not _is_same(left[name], right[name])]


def _is_same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return _bits(left) == _bits(right)
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return _is_same_decimal(left, right)
    return type(left) is type(right) and bool(left == right)


def _is_same_decimal(left: Decimal, right: Decimal) -> bool:
    """Equal in sign, digits and exponent."""
    return left == right and left.same_quantum(right) and left.is_signed() == right.is_signed()


def _changes(row: AnyRow, breakdown: Breakdown, trace: Trace) -> Iterator[tuple[str, str, str]]:
    """Field, stored and new value of everything that another value came out of."""
    for name in changed_fields(row.reward, breakdown):
        yield name, _text(getattr(row.reward, name)), _text(getattr(breakdown, name))
    stored = [(entry.offset, entry.value) for entry in row.reward_trace]
    if stored != trace or _trace_bits(stored) != _trace_bits(trace):
        yield "reward_trace", _trace_text(stored), _trace_text(trace)
    total = fsum(value for _, value in trace)
    if _bits(row.reward_score) != _bits(total):
        yield "reward_score", _text(row.reward_score), _text(total)


def _check_trace(stored: StoredRow, row: AnyRow) -> None:
    """A trace that differs may be damaged; one that does not was placed on sampled tokens a moment ago."""
    spans = row.episode.sampled_spans
    for place_in_trace, entry in enumerate(row.reward_trace):
        if not any(start <= entry.offset < end for start, end in spans):
            raise RecordError(
                f"{stored.where}: reward_trace.{place_in_trace}.offset={entry.offset} is no sampled token (sampled: "
                f"{list(spans)}); restore the record from a copy"
            )


def _compared(row: AnyRow, breakdown: Breakdown, *, is_equal: bool) -> ComparedRow:
    return ComparedRow(
        key=_key(row),
        benchmark=row.benchmark,
        subset=breakdown.subset,
        terminal_reason=row.episode.terminal_reason,
        acc=breakdown.acc,
        num_explores=breakdown.num_explores,
        cost_total=breakdown.cost_total,
        old=_amounts(row.reward),
        new=_amounts(breakdown),
        is_equal=is_equal,
    )


def _amounts(reward: Breakdown) -> Amounts:
    return Amounts(*(getattr(reward, name) for name in Amounts._fields))


def _key(row: AnyRow) -> RowKey:
    return RowKey(
        run_id=row.run_id,
        uid=row.uid,
        session_id=row.session_id,
        attempt_id=row.attempt_id,
        partition=row.partition,
        step=row.global_steps,
        question_id=row.question_id,
    )


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


def _trace_bits(trace: Trace) -> bytes:
    return struct.pack(f"<{len(trace)}d", *(value for _, value in trace))


def _trace_text(trace: Trace) -> str:
    return " ".join(f"{offset}:{value!r}" for offset, value in trace)


def _text(value: Any) -> str:
    """A value so that two of different bits look different."""
    return repr(value) if isinstance(value, float) else str(value)
