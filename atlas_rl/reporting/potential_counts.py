"""From stored runs to the counts of a potential table: which submits at which prefix were right."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from atlas_rl.errors import ConfigError, DataError
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.trajectory import TrajectoryHeader
from atlas_rl.records.vocabulary import EventKind, Partition, TerminalReason
from atlas_rl.rewards.potential_table import CountedRow, CountedRun, Pool, TableHeader


class Question(NamedTuple):
    """A row that a table must have, whether or not a submit of it is stored."""

    question_id: str
    permutation_id: str
    candidate_fingerprint: str
    benchmark: str
    max_explores: int
    found_in: str
    """The run or the file, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """Which submits count, and how much the prior weighs.

    Raises:
        ConfigError: the prior has no weight, or a step is negative.
    """

    strength: Decimal = Decimal(4)
    """Submits that the prior is worth; above 0, because a prefix without a submit has nothing else."""
    partitions: tuple[Partition, ...] = tuple(Partition)
    from_step: int = 0
    """First global step whose submits count."""

    def __post_init__(self) -> None:
        """Check every value."""
        if not self.strength.is_finite() or self.strength <= 0:
            raise ConfigError(f"--strength must be a finite number of submits above 0, got {self.strength}")
        if self.from_step < 0:
            raise ConfigError(f"--from-step must be at least 0, got {self.from_step}")


class RunCounts(NamedTuple):
    """What became of the rows of one run."""

    run_id: str
    trajectories: int
    """Rows of the store."""
    superseded: int
    """Rows of steps that a later attempt drew again."""
    not_asked_for: int
    """Rows of another partition or an earlier step."""
    no_submit: int
    """Rows without a graded submit, infrastructure errors included."""
    submits: int
    """Rows that were counted."""
    torn: tuple[str, ...]
    """What a kill cut short and reading skipped."""


class _Light(NamedTuple):
    place: tuple[Partition, int]
    attempt_id: int
    key: tuple[str, str]
    prefix: int | None
    """Candidates revealed before the submit; None: nothing to count."""
    is_right: bool


class Counts:
    """Questions and their counted submits, run by run."""

    def __init__(self, counting: Counting) -> None:
        """Start with nothing."""
        self.counting = counting
        self._questions: dict[tuple[str, str], Question] = {}
        self._submits: dict[tuple[str, str], list[tuple[int, bool]]] = {}
        self._runs: dict[str, CountedRun] = {}

    def add_questions(self, questions: Iterable[Question]) -> None:
        """Add rows that the table must have.

        Raises:
            DataError: a row is known with other candidates or as another benchmark's.
        """
        for question in questions:
            key = (question.question_id, question.permutation_id)
            known = self._questions.setdefault(key, question)
            same = (question.candidate_fingerprint, question.benchmark)
            if (known.candidate_fingerprint, known.benchmark) != same:
                raise DataError(
                    f"question {key[0]!r}, permutation {key[1]!r} has candidates {known.candidate_fingerprint} of "
                    f"{known.benchmark!r} in {known.found_in}, but {same[0]} of {same[1]!r} in {question.found_in}; a "
                    "table is for one dataset"
                )
            if question.max_explores > known.max_explores:
                self._questions[key] = question

    def add_run(self, run: Path) -> RunCounts:
        """Count the submits of every shard under a run's folder.

        Raises:
            RecordError: there is no such folder, or a shard is damaged.
            DataError: the folder holds no trajectory or those of several runs, the run was counted before, or a row
                is known with other candidates.
        """
        store = TrajectoryStore(run)
        run_ids: set[str] = set()
        rows = [self._read(stored.decode(), str(run), run_ids) for stored in store.headers()]
        if len(run_ids) != 1:
            found = f"{len(run_ids)} runs ({', '.join(sorted(run_ids))})" if run_ids else "no trajectory"
            raise DataError(f"{run} holds {found}; give artifacts/RUN, one run at a time")
        run_id = run_ids.pop()
        if run_id in self._runs:
            raise DataError(f"{run}: run {run_id!r} was counted already; give each run once")
        last: dict[tuple[Partition, int], int] = {}
        for row in rows:
            last[row.place] = max(row.attempt_id, last.get(row.place, 0))
        latest = [row for row in rows if row.attempt_id == last[row.place]]
        asked = [row for row in latest if self._is_asked_for(row)]
        submits = [row for row in asked if row.prefix is not None]
        for row in submits:
            assert row.prefix is not None
            self._submits.setdefault(row.key, []).append((row.prefix, row.is_right))
        self._runs[run_id] = CountedRun(run_id=run_id, trajectories=len(rows), submits=len(submits))
        return RunCounts(
            run_id=run_id,
            trajectories=len(rows),
            superseded=len(rows) - len(latest),
            not_asked_for=len(latest) - len(asked),
            no_submit=len(asked) - len(submits),
            submits=len(submits),
            torn=tuple(f"{torn.file}: {torn.what}" for torn in store.torn),
        )

    def table(self) -> tuple[TableHeader, list[CountedRow]]:
        """Header and rows of the table, every prefix of every question in it.

        Raises:
            DataError: a benchmark has no counted submit at all, so that its prior would be a guess.
        """
        rows = [self._row(key, question) for key, question in self._questions.items()]
        by_benchmark: dict[str, list[CountedRow]] = {}
        for row in rows:
            by_benchmark.setdefault(row.benchmark, []).append(row)
        for name, its_rows in by_benchmark.items():
            if not sum(sum(row.total) for row in its_rows):
                raise DataError(
                    f"benchmark {name!r}: {len(its_rows)} questions and no counted submit; give a run that submitted, "
                    "or widen --partition and --from-step"
                )
        header = TableHeader(
            strength=self.counting.strength,
            pools={name: _pool(its_rows) for name, its_rows in sorted(by_benchmark.items())},
            runs=tuple(run for _, run in sorted(self._runs.items())),
            partitions=tuple(sorted(self.counting.partitions)),
            from_step=self.counting.from_step,
        )
        return header, rows

    def _read(self, row: TrajectoryHeader, where: str, run_ids: set[str]) -> _Light:
        run_ids.add(row.run_id)
        episode = row.episode
        self.add_questions(
            [
                Question(
                    row.question_id, row.permutation_id, row.candidate_fingerprint, row.benchmark,
                    episode.max_explores, where,
                )
            ]
        )  # fmt: skip
        is_fault = episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR
        prefixes = [event.prefix_before for event in episode.events if event.kind is EventKind.SUBMIT and not is_fault]
        return _Light(
            place=(row.partition, row.global_steps),
            attempt_id=row.attempt_id,
            key=(row.question_id, row.permutation_id),
            prefix=prefixes[0] if prefixes else None,
            is_right=bool(row.grade.acc),
        )

    def _is_asked_for(self, row: _Light) -> bool:
        partition, step = row.place
        return partition in self.counting.partitions and step >= self.counting.from_step

    def _row(self, key: tuple[str, str], question: Question) -> CountedRow:
        right, total = [0] * (question.max_explores + 1), [0] * (question.max_explores + 1)
        for prefix, is_right in self._submits.get(key, ()):
            right[prefix] += is_right
            total[prefix] += 1
        return CountedRow(*key, question.candidate_fingerprint, question.benchmark, tuple(right), tuple(total))


def _pool(rows: Sequence[CountedRow]) -> Pool:
    longest = max(len(row.total) for row in rows)
    return Pool(
        right=_sums([row.right for row in rows], longest),
        total=_sums([row.total for row in rows], longest),
    )


def _sums(counts: Collection[Sequence[int]], length: int) -> tuple[int, ...]:
    sums = [0] * length
    for row in counts:
        for prefix, count in enumerate(row):
            sums[prefix] += count
    return tuple(sums)
