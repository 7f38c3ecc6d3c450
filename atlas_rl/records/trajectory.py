"""The file around an episode: its tokens, its grade and its reward."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from atlas_rl.records.base import Record
from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.episode import Episode
from atlas_rl.records.vocabulary import Partition, Verdict

FILE_VERSION: Final = 1
"""Version of Trajectory itself; Episode has its own. ``records.migration`` reads the older ones."""


class Grade(Record):
    """One verdict on a submitted answer, made once."""

    grader: str
    version: str
    verdict: Verdict
    seconds: Annotated[float, Field(ge=0)]
    """Wall time the grader took."""
    detail: str

    @property
    def acc(self) -> int:
        """1 if correct, else 0."""
        return int(self.verdict is Verdict.CORRECT)


class PlacedReward(Record):
    """One reward on one token."""

    offset: int = Field(ge=0)
    """Response offset of the token."""
    value: float
    """The float32 value that the trainer sees, as a Python float."""


class TrajectoryHeader(Record):
    """One stored row without its token arrays: enough to read it and to score it again."""

    file_version: Literal[1] = FILE_VERSION
    run_id: str
    uid: str
    session_id: int
    attempt_id: int
    benchmark: str
    question_id: str
    permutation_id: str
    candidate_fingerprint: str
    data_source: str
    partition: Partition
    global_steps: int = Field(ge=0)
    num_turns: int
    reward_score: float
    """Sum of the placed float32 rewards, added exactly and rounded once."""
    reward: Breakdown
    reward_trace: tuple[PlacedReward, ...]
    """One entry an event, in order, and one more for the terminal reward of a row without submit."""
    ground_truth: str
    grade: Grade
    written_at: str
    """UTC, ISO 8601 with microseconds."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Facts of the task that the reward may read (cached labels, urn odds); JSON values only."""
    episode: Episode

    @model_validator(mode="after")
    def _agrees_with_its_episode(self) -> Self:
        episode = self.episode
        for name in _SHARED_WITH_EPISODE:
            if getattr(self, name) != getattr(episode, name):
                raise ValueError(
                    f"trajectory {self.uid}_{self.session_id}: {name}={getattr(self, name)!r} "
                    f"but its episode says {getattr(episode, name)!r}"
                )
        return self


class Trajectory(TrajectoryHeader):
    """One stored row. Token arrays are parallel; P prompt tokens, T response tokens."""

    prompt_ids: tuple[int, ...]
    """[P] token ids."""
    response_ids: tuple[int, ...]
    """[T] sampled ids verbatim, template glue and observations."""
    response_logprobs: tuple[float, ...]
    """[T] nats, over the tokens the engine's grammar allowed, after temperature; 0.0 on unsampled tokens."""
    response_mask: tuple[int, ...]
    """[T] 1 exactly on sampled tokens."""

    @model_validator(mode="after")
    def _tokens_agree_with_the_episode(self) -> Self:
        where = f"trajectory {self.uid}_{self.session_id}"
        length = len(self.response_ids)
        if len(self.response_logprobs) != length or len(self.response_mask) != length:
            raise ValueError(
                f"{where}: {length} response ids, {len(self.response_logprobs)} logprobs, "
                f"{len(self.response_mask)} mask entries; the three arrays are parallel"
            )
        if len(self.prompt_ids) != self.episode.prompt_tokens or length != self.episode.response_tokens:
            raise ValueError(
                f"{where}: {len(self.prompt_ids)} prompt and {length} response ids, but its episode says "
                f"prompt_tokens={self.episode.prompt_tokens}, response_tokens={self.episode.response_tokens}"
            )
        mask = [0] * length
        for start, end in self.episode.sampled_spans:
            mask[start:end] = [1] * (end - start)
        if list(self.response_mask) != mask:
            raise ValueError(f"{where}: response_mask is not 1 exactly on the sampled tokens of the generations")
        for placed in self.reward_trace:
            if placed.offset >= length or not mask[placed.offset]:
                raise ValueError(f"{where}: reward {placed.value} on token {placed.offset}, which was not sampled")
        return self


TOKEN_ARRAYS = ("prompt_ids", "response_ids", "response_logprobs", "response_mask")
"""The fields that a Trajectory has beyond its header."""

_SHARED_WITH_EPISODE = (
    "run_id",
    "uid",
    "session_id",
    "attempt_id",
    "benchmark",
    "question_id",
    "permutation_id",
    "candidate_fingerprint",
    "num_turns",
)
