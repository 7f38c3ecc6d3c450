"""The two tools of a sequential episode: explore reveals the next candidate, submit hands in an answer."""

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from atlas_rl.errors import ToolError
from atlas_rl.records.vocabulary import EventKind
from atlas_rl.tasks.benchmark import Benchmark
from atlas_rl.tasks.row import Row
from atlas_rl.tasks.sequential import observation_payload, observation_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one tool did; the fields of ``Event`` explain their namesakes."""

    kind: EventKind
    explore_k: int | None
    candidate_idx: int | None
    prefix_before: int
    prefix_after: int
    charged_cost_usd: Decimal
    payload: dict[str, Any]
    payload_nonempty: bool
    tool_response: str
    has_observation: bool
    """Whether the tool answers at all: an explore always does, a submit if the benchmark has a response to it."""


def explore(benchmark: Benchmark, row: Row, num_revealed: int) -> Outcome:
    """Reveal and charge candidate ``num_revealed`` (from 0), the next one.

    Raises:
        DataError: all candidates of the row are revealed.
    """
    k = num_revealed + 1
    payload = observation_payload(row, k)
    return Outcome(
        kind=EventKind.EXPLORE,
        explore_k=k,
        candidate_idx=num_revealed,
        prefix_before=num_revealed,
        prefix_after=k,
        charged_cost_usd=row.candidates[num_revealed].cost_usd,
        payload=payload,
        payload_nonempty=bool(payload["answer"].strip()),
        tool_response=observation_text(benchmark, row, k),
        has_observation=True,
    )


def submit(benchmark: Benchmark, arguments: dict[str, Any], num_revealed: int) -> Outcome:
    """Take the answer out of a submit's arguments; it is free of charge.

    A text is taken verbatim; any other JSON value is written as JSON, because graders compare texts.

    Raises:
        ToolError: the arguments lack the submission field, so the benchmark's schema does not require it.
    """
    field = benchmark.submission_field
    if field not in arguments:
        raise ToolError(
            f"submit of benchmark {benchmark.name!r} has no argument {field!r} in {sorted(arguments)}; "
            "list it under required in the submit schema"
        )
    value = arguments[field]
    answer = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
    return Outcome(
        kind=EventKind.SUBMIT,
        explore_k=None,
        candidate_idx=None,
        prefix_before=num_revealed,
        prefix_after=num_revealed,
        charged_cost_usd=Decimal(0),
        payload={"answer": answer},
        payload_nonempty=bool(answer.strip()),
        tool_response=benchmark.submit_response,
        has_observation=bool(benchmark.submit_response),
    )
