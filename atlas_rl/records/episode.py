"""One episode as it happened: generations, the calls read from them, and the actions that ran.

Offsets count tokens of the response (0 is the first token after the prompt) and ranges are half-open.
"""

from typing import Any, Final, Literal

from pydantic import Field, model_validator

from atlas_rl.records.base import Record, Usd
from atlas_rl.records.offsets import check_offsets
from atlas_rl.records.vocabulary import EventKind, Finish, FinishSource, TerminalReason

SCHEMA_VERSION: Final = 2
"""Version of Episode and everything inside it; ``records.migration`` reads the older ones."""


class Sampling(Record):
    """The sampling parameters of one generation."""

    temperature: float = Field(ge=0)
    """0 is greedy."""
    top_p: float = Field(gt=0, le=1)
    top_k: int
    """-1 is off."""
    seed: int | None
    """Seed of this generation alone, derived from (run seed, uid, session, turn, step); None: the engine's own."""


class Generation(Record):
    """One sampling call: the tokens of one turn that the policy produced."""

    turn_id: int = Field(ge=0)
    request_id: str
    weight_version: int = Field(ge=0)
    """Global step of the weights that sampled it."""
    response_offset: int = Field(ge=0)
    num_sampled: int = Field(ge=0)
    max_tokens: int = Field(ge=1)
    finish: Finish
    finish_source: FinishSource
    tail_token_ids: tuple[int, ...]
    """The last (at most 8) sampled ids, so that the finish can be audited without the token arrays."""
    grammar_hash: str | None
    """sha256 of the structural tag that constrained it, None if the grammar was off."""
    allowed_tools: tuple[str, ...]
    forced: tuple[tuple[int, int], ...] | None = None
    """Half-open ranges of places among its sampled tokens that had no legal alternative; None: sampled without a
    grammar, or not looked at, as in records of version 1."""
    sampling: Sampling
    num_cached_tokens: int | None
    """Prompt tokens that the engine served from its prefix cache, None if it did not say."""


class ProposedCall(Record):
    """What was read from one generation, whether or not it could run."""

    turn_id: int = Field(ge=0)
    name: str | None
    arguments: dict[str, Any] | None
    raw_text: str
    """The call between its begin and end tokens, decoded; for reading only, never re-encoded."""
    valid: bool
    reason: str
    """Empty if valid, else why the call cannot run, in one line."""
    extra_calls: int = Field(ge=0)
    """Calls after the first in the same generation."""


class Event(Record):
    """One executed action."""

    index: int = Field(ge=0)
    turn_id: int = Field(ge=0)
    kind: EventKind
    action_start_offset: int = Field(ge=0)
    action_end_offset: int = Field(ge=1)
    """One past the last sampled token of the action: its reward sits on ``action_end_offset - 1``."""
    explore_k: int | None
    """1 for the first explore, and so on; None for a submit."""
    candidate_idx: int | None
    """Place of the revealed candidate in the row, from 0; None for a submit."""
    prefix_before: int = Field(ge=0)
    """Candidates revealed before the action."""
    prefix_after: int = Field(ge=0)
    charged_cost_usd: Usd
    payload: dict[str, Any]
    """What the tool returned: an explore's candidate (answer, reasoning, timed_out), a submit's answer."""
    payload_nonempty: bool
    """False if the explored candidate has no answer (it timed out) or the submitted answer is empty."""
    tool_response: str
    """Text of the observation, whether or not it was appended; empty if the tool has none."""
    observation_appended: bool
    observation_offset: int | None
    """Where the observation's tokens start, template glue included; None if not appended."""
    observation_length: int = Field(ge=0)
    """Tokens of the observation, glue included; 0 if not appended."""

    @model_validator(mode="after")
    def _consistent(self) -> "Event":
        if self.action_end_offset <= self.action_start_offset:
            raise ValueError(
                f"event {self.index}: action [{self.action_start_offset}, {self.action_end_offset}) holds no token"
            )
        if (self.kind is EventKind.EXPLORE) != (self.explore_k is not None and self.candidate_idx is not None):
            raise ValueError(
                f"event {self.index}: a {self.kind} has explore_k={self.explore_k}, candidate_idx={self.candidate_idx}"
            )
        if self.observation_appended != (self.observation_offset is not None):
            raise ValueError(
                f"event {self.index}: observation_appended={self.observation_appended} "
                f"but observation_offset={self.observation_offset}"
            )
        return self


class Episode(Record):
    """One attempt at one question."""

    schema_version: Literal[2] = SCHEMA_VERSION
    run_id: str
    uid: str
    """One drawn question; all sessions of it share the uid."""
    session_id: int = Field(ge=0)
    """Which of the question's attempts in this batch, from 0."""
    attempt_id: int = Field(ge=0)
    """Which launch of the run drew it: 0, then one more for each resume."""
    benchmark: str
    question_id: str
    permutation_id: str
    """Names the order of the candidates; two rows of one question with other orders differ in it."""
    candidate_fingerprint: str
    """sha256 of the ordered candidates."""
    submission_field: str
    """Argument of submit that holds the answer."""
    max_explores: int = Field(ge=1)
    weight_versions: tuple[int, ...]
    """Distinct weight versions over the generations, ascending."""
    prompt_tokens: int = Field(ge=0)
    response_tokens: int = Field(ge=0)
    """Sampled tokens, template glue and observations together."""
    model_tokens: int = Field(ge=0)
    """Sampled tokens."""
    num_turns: int = Field(ge=0)
    terminal_reason: TerminalReason
    terminal_offset: int | None
    """Response offset of the token that carries the terminal reward: the last of the submit, else the last sampled
    token of the row; None if nothing was sampled."""
    explores_executed: int = Field(ge=0)
    submit_executed: bool
    protocol_violations: int = Field(ge=0)
    error: str | None = None
    """For infrastructure_error: which fault, in one line."""
    generations: tuple[Generation, ...]
    proposed_calls: tuple[ProposedCall, ...]
    events: tuple[Event, ...]

    @model_validator(mode="after")
    def _consistent(self) -> "Episode":
        explores = 0
        submits = 0
        for event in self.events:
            if event.kind is EventKind.EXPLORE:
                explores += 1
            else:
                submits += 1
        if explores != self.explores_executed:
            raise ValueError(f"{self._where}: explores_executed={self.explores_executed} but {explores} explore events")
        if self.submit_executed != (submits > 0):
            raise ValueError(f"{self._where}: submit_executed={self.submit_executed} disagrees with the events")
        for generation in self.generations:
            if generation.forced:
                self._check_forced(generation)
        check_offsets(self)
        return self

    @property
    def _where(self) -> str:
        return f"episode {self.uid}_{self.session_id}"

    def _check_forced(self, generation: Generation) -> None:
        edges = [edge for forced in generation.forced or () for edge in forced]
        if edges != sorted(set(edges)) or not 0 <= edges[0] < edges[-1] <= generation.num_sampled:
            raise ValueError(
                f"{self._where}: generation {generation.turn_id} has forced={generation.forced}; ranges must ascend, "
                f"not touch, and lie in its {generation.num_sampled} tokens"
            )

    @property
    def sampled_spans(self) -> tuple[tuple[int, int], ...]:
        """[num_turns] half-open response ranges of the sampled tokens, one a generation."""
        return tuple((g.response_offset, g.response_offset + g.num_sampled) for g in self.generations)

    @property
    def forced_spans(self) -> tuple[tuple[int, int], ...]:
        """Half-open response ranges of the sampled tokens that had no legal alternative."""
        return tuple(
            (g.response_offset + start, g.response_offset + end)
            for g in self.generations
            for start, end in g.forced or ()
        )
