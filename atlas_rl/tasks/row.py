"""One row of a dataset: a question and its ordered, priced candidates."""

import hashlib
import json
from typing import Any

from pydantic import Field, model_validator

from atlas_rl.records.base import Record, Usd
from atlas_rl.records.breakdown import MAX_EXPLORES


class Candidate(Record):
    """A cached solution that an explore can reveal."""

    answer: str
    """Empty if it timed out without one."""
    reasoning: str
    cost_usd: Usd
    timed_out: bool
    is_correct: bool
    """The cached label, made when the dataset was built; the policy never sees it."""


class Row(Record):
    """A question with its candidates in the order in which explores reveal them."""

    question_id: str
    question: str
    benchmark: str
    permutation_id: str
    """Names the order of the candidates."""
    max_explores: int = Field(ge=1, le=MAX_EXPLORES)
    candidates: tuple[Candidate, ...]
    ground_truth: str
    data_source: str
    subset: str = ""
    """Which part of the benchmark the row belongs to, for validation views."""
    facts: dict[str, Any] = Field(default_factory=dict)
    """What only the task's own analysis needs (urn odds); JSON values only."""

    @model_validator(mode="after")
    def _enough_candidates(self) -> "Row":
        if len(self.candidates) < self.max_explores:
            raise ValueError(
                f"row {self.question_id!r} has {len(self.candidates)} candidates for "
                f"max_explores={self.max_explores}; lower max_explores"
            )
        return self

    @property
    def candidate_fingerprint(self) -> str:
        """sha256 (hex) of the ordered candidates as canonical JSON."""
        canonical = json.dumps(
            [candidate.model_dump(mode="json") for candidate in self.candidates],
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=True,
        )
        return hashlib.sha256(canonical.encode()).hexdigest()
