"""What the policy reads in a sequential episode: the opening messages and the text of each observation."""

from typing import Any

from atlas_rl.errors import DataError
from atlas_rl.tasks.benchmark import Benchmark
from atlas_rl.tasks.row import Candidate, Row


def messages(benchmark: Benchmark, row: Row) -> list[dict[str, str]]:
    """The opening chat of a row: the benchmark's system prompt, then the question as the user."""
    return [
        {"role": "system", "content": benchmark.system_prompt},
        {"role": "user", "content": row.question},
    ]


def observation_text(benchmark: Benchmark, row: Row, k: int) -> str:
    """What explore ``k`` (from 1) shows: candidate ``k`` through the benchmark's template.

    Raises:
        DataError: the row may not reveal a candidate ``k``.
    """
    candidate = _revealed(row, k)
    template = benchmark.timed_out_observation if candidate.timed_out else benchmark.observation
    return template.format(k=k, max_explores=row.max_explores, answer=candidate.answer, reasoning=candidate.reasoning)


def observation_payload(row: Row, k: int) -> dict[str, Any]:
    """The facts of explore ``k`` (from 1) for the record; ``is_correct`` is never part of the text.

    Raises:
        DataError: the row may not reveal a candidate ``k``.
    """
    candidate = _revealed(row, k)
    return {
        "answer": candidate.answer,
        "reasoning": candidate.reasoning,
        "timed_out": candidate.timed_out,
        "is_correct": candidate.is_correct,
    }


def _revealed(row: Row, k: int) -> Candidate:
    if not 1 <= k <= row.max_explores:
        raise DataError(f"row {row.question_id!r}: explore {k} is outside 1..{row.max_explores}; stop at max_explores")
    return row.candidates[k - 1]
