"""A run in a few figures, read back from its stored records alone."""

from collections import defaultdict
from collections.abc import Iterable
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from atlas_rl.errors import RecordError
from atlas_rl.records.base import Record
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.trajectory import TrajectoryHeader
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.reporting.metrics import MetricsRead, read_metrics

INVARIANTS = (
    "reward/mapping_sum_error_max",
    "reward/decomposition_error_max",
    "reward/mapped_slots_minus_events_max",
    "protocol/violations_in_batch",
)
"""Metrics that are 0 at every step of a sound run."""


class Estimate(Record):
    """A mean with its standard error."""

    mean: float
    standard_error: float | None
    """Sample standard deviation / sqrt(count); None below two values."""
    count: int


class Validation(Record):
    """One validation of the run."""

    step: int
    utility: Estimate
    """Over the rows that did not end in infrastructure_error."""
    infrastructure_errors: int


class RunSummary(Record):
    """What the stored records say about a run.

    Where a resumed run drew a step again, the rows of the latest attempt count; violations count in all.
    """

    num_training_steps: int
    num_training_episodes: int
    num_superseded_episodes: int
    """Training and validation rows of steps that a later attempt drew again."""
    validations: tuple[Validation, ...]
    """By step; a validation whose rows all ended in infrastructure_error is left out."""
    utility_gain: Estimate | None
    """Last validation minus first, paired by question_id (the mean over a question's rows); None without two
    validations that share a question."""
    protocol_violations: int
    """Over every stored row."""
    invariant_max: dict[str, float | None]
    """Largest logged value of each of INVARIANTS; None if it was not finite once, absent if it was never logged."""
    torn: tuple[str, ...]
    """What a kill cut short and reading skipped."""


def summarise_run(run_dir: Path) -> RunSummary:
    """Summarise the run in ``run_dir``: train/, val/ and metrics.jsonl, each of which may be missing.

    Raises:
        RecordError: there is no such run, or a file of it is damaged.
    """
    if not run_dir.is_dir():
        raise RecordError(f"run {run_dir}: no such folder; give artifacts/RUN")
    torn: list[str] = []
    train, val = (_Rows(run_dir / name, torn) for name in ("train", "val"))
    by_step = {step: _utility_by_question(rows) for step, rows in sorted(val.latest.items())}
    validated = {step: questions for step, questions in by_step.items() if questions}
    metrics = _metrics(run_dir / "metrics.jsonl", torn)
    return RunSummary(
        num_training_steps=len(train.latest),
        num_training_episodes=sum(map(len, train.latest.values())),
        num_superseded_episodes=train.num_superseded + val.num_superseded,
        validations=tuple(
            Validation(
                step=step,
                utility=estimate([utility for utilities in questions.values() for utility in utilities]),
                infrastructure_errors=len(val.latest[step]) - sum(map(len, questions.values())),
            )
            for step, questions in validated.items()
        ),
        utility_gain=_gain(list(validated.values())),
        protocol_violations=train.violations + val.violations,
        invariant_max=_invariant_max(metrics),
        torn=tuple(torn),
    )


def estimate(values: list[float]) -> Estimate:
    """Mean and standard error of at least one value."""
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else None
    return Estimate(mean=fmean(values), standard_error=error, count=len(values))


class _Row(Record):
    attempt_id: int
    question_id: str
    utility: float | None
    """None for an infrastructure_error."""


class _Rows:
    """The rows under one folder by step, those of each step's latest attempt apart from the superseded ones."""

    def __init__(self, folder: Path, torn: list[str]) -> None:
        steps: dict[int, list[_Row]] = defaultdict(list)
        self.violations = 0
        store = TrajectoryStore(folder) if folder.is_dir() else None
        for stored in store.headers() if store else ():
            row = stored.decode()
            self.violations += row.reward.protocol_violations
            steps[row.global_steps].append(_light(row))
        torn += [f"{one.file}: {one.what}" for one in (store.torn if store else ())]
        self.latest: dict[int, list[_Row]] = {}
        for step, rows in steps.items():
            last = max(row.attempt_id for row in rows)
            self.latest[step] = [row for row in rows if row.attempt_id == last]
        self.num_superseded = sum(map(len, steps.values())) - sum(map(len, self.latest.values()))


def _light(row: TrajectoryHeader) -> _Row:
    is_fault = row.episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR
    utility = None if is_fault else row.reward.utility
    return _Row(attempt_id=row.attempt_id, question_id=row.question_id, utility=utility)


def _utility_by_question(rows: Iterable[_Row]) -> dict[str, list[float]]:
    questions: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.utility is not None:
            questions[row.question_id].append(row.utility)
    return dict(questions)


def _gain(validated: list[dict[str, list[float]]]) -> Estimate | None:
    if len(validated) < 2:
        return None
    first, last = validated[0], validated[-1]
    shared = [fmean(last[question]) - fmean(first[question]) for question in first if question in last]
    return estimate(shared) if shared else None


def _metrics(path: Path, torn: list[str]) -> MetricsRead:
    if not path.is_file():
        return MetricsRead(lines=(), torn=())
    read = read_metrics(path)
    torn += [f"{path}: line {number} is cut short" for number in read.torn]
    return read


def _invariant_max(metrics: MetricsRead) -> dict[str, float | None]:
    worst: dict[str, float | None] = {}
    for name in INVARIANTS:
        values = [line[name] for line in metrics.lines if name in line]
        if values:
            worst[name] = None if None in values else max(values)
    return worst
