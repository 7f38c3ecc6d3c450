"""The part of a stored row that a reward is a function of, read without the rest.

Reading a whole header costs as much as scoring it: most of it is texts, sampling and calls, which no reward reads.
They were validated when the row was stored, and its digest says that they are what was stored. Every field here is the
field of that name of ``TrajectoryHeader`` or ``Episode``, and a row that is not of the newest versions is read whole.
"""

from decimal import Decimal
from typing import Any, Literal, Self, TypeAlias

from pydantic import ConfigDict, Field, ValidationError, model_validator
from typing_extensions import TypedDict

from atlas_rl.records.base import Record
from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.episode import Episode, Event
from atlas_rl.records.offsets import check_offsets
from atlas_rl.records.trajectory import Grade, PlacedReward, TrajectoryHeader
from atlas_rl.records.vocabulary import EventKind, Partition, TerminalReason


class _Part(Record):
    model_config = ConfigDict(extra="ignore")


class ScoringPayload(TypedDict, total=False):
    """What a reward reads of a payload; other keys are left out."""

    __pydantic_config__ = ConfigDict(extra="ignore")  # type: ignore[misc]

    answer: Any
    is_correct: Any


class ScoringEvent(_Part):
    """See ``Event``."""

    index: int = Field(ge=0)
    turn_id: int = Field(ge=0)
    kind: EventKind
    action_start_offset: int = Field(ge=0)
    action_end_offset: int = Field(ge=1)
    explore_k: int | None
    prefix_before: int = Field(ge=0)
    prefix_after: int = Field(ge=0)
    charged_cost_usd: Decimal = Field(ge=0)
    payload: ScoringPayload
    payload_nonempty: bool
    observation_appended: bool
    observation_offset: int | None
    observation_length: int = Field(ge=0)


class ScoringGeneration(_Part):
    """See ``Generation``."""

    turn_id: int = Field(ge=0)
    response_offset: int = Field(ge=0)
    num_sampled: int = Field(ge=0)


class ScoringEpisode(_Part):
    """See ``Episode``."""

    schema_version: Literal[2]
    uid: str
    session_id: int = Field(ge=0)
    question_id: str
    permutation_id: str
    candidate_fingerprint: str
    prompt_tokens: int = Field(ge=0)
    response_tokens: int = Field(ge=0)
    model_tokens: int = Field(ge=0)
    num_turns: int = Field(ge=0)
    terminal_reason: TerminalReason
    terminal_offset: int | None
    protocol_violations: int = Field(ge=0)
    generations: tuple[ScoringGeneration, ...]
    events: tuple[ScoringEvent, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_offsets(self)
        return self

    @property
    def sampled_spans(self) -> tuple[tuple[int, int], ...]:
        """[num_turns] half-open response ranges of the sampled tokens, one a generation."""
        return tuple((g.response_offset, g.response_offset + g.num_sampled) for g in self.generations)


class ScoringRow(_Part):
    """See ``TrajectoryHeader``."""

    file_version: Literal[1]
    run_id: str
    uid: str
    session_id: int
    attempt_id: int
    benchmark: str
    question_id: str
    partition: Partition
    global_steps: int = Field(ge=0)
    reward_score: float
    reward: Breakdown
    reward_trace: tuple[PlacedReward, ...]
    grade: Grade
    extra: dict[str, Any]
    episode: ScoringEpisode


AnyEvent: TypeAlias = Event | ScoringEvent
AnyEpisode: TypeAlias = Episode | ScoringEpisode
AnyRow: TypeAlias = TrajectoryHeader | ScoringRow


def read_for_scoring(header: bytes) -> ScoringRow | None:
    """The row of a header; None if it must be read whole: it is of an older version, or not sound."""
    try:
        return ScoringRow.model_validate_json(header)
    except ValidationError:
        return None
