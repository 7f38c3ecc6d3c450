"""``atlas-rl replay --regrade``: every stored answer judged again by the grader of its benchmark."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from atlas_rl.errors import ConfigError, RecordError
from atlas_rl.grading.grader import grader_for
from atlas_rl.records.store import StoredRow, TrajectoryStore
from atlas_rl.records.trajectory import Grade, TrajectoryHeader
from atlas_rl.records.vocabulary import EventKind, Verdict
from atlas_rl.tasks.benchmark import load_benchmark

AT_ONCE = 256
"""Answers that wait for a grader at one time; its own processes are fewer."""

VERDICT_COLUMNS = (
    "run_id",
    "uid",
    "session_id",
    "attempt_id",
    "partition",
    "step",
    "question_id",
    "benchmark",
    "grader",
    "old_verdict",
    "new_verdict",
    "old_seconds",
    "new_seconds",
    "old_version",
    "new_version",
    "detail",
)


class Question(NamedTuple):
    """What a grader is asked; equal questions are asked once."""

    grader: str
    answer: str
    ground_truth: str


class Stored(NamedTuple):
    """One graded row."""

    file: Path
    row: int
    key: tuple[Any, ...]
    """Its columns in the table, from run_id to benchmark."""
    grade: Grade


@dataclass(frozen=True, slots=True, kw_only=True)
class Regraded:
    """What the graders say now."""

    num_graded: int
    """Rows whose answer was judged again."""
    num_asked: int
    """Different questions among them."""
    moved: Sequence[tuple[Stored, Grade]]
    """Rows with another verdict, in the order of the store."""

    @property
    def grades(self) -> dict[tuple[Path, int], Grade]:
        """New verdicts by shard and row. An answer that cannot be judged now keeps its stored verdict."""
        return {(old.file, old.row): new for old, new in self.moved if new.verdict is not Verdict.UNJUDGED}

    @property
    def num_unjudged(self) -> int:
        """Rows that were judged once and could not be judged again."""
        return len(self.moved) - len(self.grades)

    def table(self) -> list[tuple[Any, ...]]:
        """The moved verdicts under VERDICT_COLUMNS."""
        return [
            (
                *old.key,
                new.grader,
                old.grade.verdict,
                new.verdict,
                old.grade.seconds,
                new.seconds,
                old.grade.version,
                new.version,
                new.detail,
            )
            for old, new in self.moved
        ]


Questions = Mapping[Question, Sequence[Stored]]
"""Each different question, and the rows that asked it."""


def find_questions(folder: Path, benchmark_files: Sequence[Path] = ()) -> Questions:
    """What the graders were asked, by the rows of a store; an episode without a submit asked nothing.

    Args:
        folder: the store.
        benchmark_files: YAML files of benchmarks that do not come with atlas_rl.

    Raises:
        ConfigError: a row's benchmark is not known.
        RecordError: a row cannot be read, or lacks its answer.
    """
    graders = _Graders(benchmark_files)
    questions: dict[Question, list[Stored]] = defaultdict(list)
    for stored in TrajectoryStore(folder).headers():
        row = stored.decode()
        if row.grade.verdict is not Verdict.NO_ANSWER:
            question = Question(graders.of(row.benchmark), _answer(stored, row), row.ground_truth)
            questions[question].append(_light(stored, row))
    return questions


def regrade(
    questions: Questions, *, time_limit_seconds: float, on_done: Callable[[int], None] = lambda _: None
) -> Regraded:
    """Judge every answer again.

    Args:
        questions: from ``find_questions``.
        time_limit_seconds: wall time of one verdict; an answer that takes longer gets the verdict of a timeout.
        on_done: called with the number of questions answered since the last call.
    """
    grades = asyncio.run(_ask(list(questions), time_limit_seconds, on_done))
    judged = [(old, grades[question]) for question, rows in questions.items() for old in rows]
    moved = [(old, new) for old, new in judged if new.verdict is not old.grade.verdict]
    return Regraded(
        num_graded=len(judged),
        num_asked=len(questions),
        moved=sorted(moved, key=lambda pair: (pair[0].file, pair[0].row)),
    )


class _Graders:
    """The grader that each benchmark names."""

    def __init__(self, files: Sequence[Path]) -> None:
        own = [load_benchmark(str(file)) for file in files]
        self._names = {benchmark.name: benchmark.grader for benchmark in own}

    def of(self, benchmark: str) -> str:
        if benchmark not in self._names:
            try:
                self._names[benchmark] = load_benchmark(benchmark).grader
            except ConfigError as error:
                raise ConfigError(f"benchmark {benchmark!r} of a row: {error}; give its file as --benchmark") from error
        return self._names[benchmark]


def _answer(stored: StoredRow, row: TrajectoryHeader) -> str:
    """The text that was judged: what the submit says."""
    answers = [event.payload.get("answer") for event in row.episode.events if event.kind is EventKind.SUBMIT]
    if not answers or not isinstance(answers[-1], str):
        raise RecordError(
            f"{stored.where}: grade.verdict={row.grade.verdict} but its events hold no submitted answer; the record is "
            "wrong"
        )
    return answers[-1]


def _light(stored: StoredRow, row: TrajectoryHeader) -> Stored:
    key = (row.run_id, row.uid, row.session_id, row.attempt_id, row.partition, row.global_steps)
    return Stored(stored.file, stored.row, (*key, row.question_id, row.benchmark), row.grade)


async def _ask(
    questions: Sequence[Question], time_limit_seconds: float, on_done: Callable[[int], None]
) -> Mapping[Question, Grade]:
    """The grade of each question."""
    grades: dict[Question, Grade] = {}
    waiting = iter(questions)
    while some := list(islice(waiting, AT_ONCE)):
        asked = (
            grader_for(question.grader, time_limit_seconds=time_limit_seconds).grade(
                question.answer, question.ground_truth
            )
            for question in some
        )
        grades.update(zip(some, await asyncio.gather(*asked), strict=True))
        on_done(len(some))
    return grades
