"""The append-only token stream of one episode, and the records of what put each token there."""

from collections.abc import Sequence
from dataclasses import dataclass

from atlas_rl.records.episode import Episode, Event, Generation, ProposedCall
from atlas_rl.records.vocabulary import PROTOCOL_VIOLATIONS, EventKind, Finish, FinishSource, TerminalReason
from atlas_rl.runtime.generate import GenerateRequest, Sampled
from atlas_rl.runtime.identity import Identity
from atlas_rl.runtime.limits import Limits
from atlas_rl.runtime.tools import Outcome
from atlas_rl.tasks.benchmark import Benchmark
from atlas_rl.tasks.row import Row

NUM_TAIL_TOKENS = 8
"""Sampled ids that a generation's record repeats for audits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """One finished episode: its record and the tokens that the record speaks of. P prompt, T response tokens."""

    episode: Episode
    prompt_ids: tuple[int, ...]
    """[P] token ids."""
    response_ids: tuple[int, ...]
    """[T] sampled ids verbatim, template glue and observations."""
    response_logprobs: tuple[float, ...]
    """[T] nats as the engine gave them; 0.0 on unsampled tokens."""

    @property
    def response_mask(self) -> tuple[int, ...]:
        """[T] 1 exactly on sampled tokens."""
        mask = [0] * len(self.response_ids)
        for start, end in self.episode.sampled_spans:
            mask[start:end] = [1] * (end - start)
        return tuple(mask)

    @property
    def submitted_answer(self) -> str | None:
        """The text that a grader judges; None if no submit ran."""
        answers = [event.payload["answer"] for event in self.episode.events if event.kind is EventKind.SUBMIT]
        return answers[-1] if answers else None


class EpisodeBuilder:
    """Grows one episode; tokens are only ever added at the end, a record never without its tokens."""

    def __init__(self, *, row: Row, benchmark: Benchmark, limits: Limits, identity: Identity) -> None:
        """Start with an empty prompt and an empty response."""
        self.row = row
        self.benchmark = benchmark
        self.limits = limits
        self.identity = identity
        self.prompt_ids: list[int] = []
        self.response_ids: list[int] = []
        self.response_logprobs: list[float] = []
        self.generations: list[Generation] = []
        self.proposed_calls: list[ProposedCall] = []
        self.events: list[Event] = []

    @property
    def tokens_left(self) -> int:
        """Tokens of the response budget that neither a generation nor an observation has used."""
        return self.limits.max_response_length - len(self.response_ids)

    @property
    def num_explores(self) -> int:
        """Explores that have run, so candidates that are revealed."""
        return sum(event.kind is EventKind.EXPLORE for event in self.events)

    def append_prompt(self, ids: Sequence[int]) -> None:
        """Add the opening prompt; it comes before all generations."""
        self.prompt_ids.extend(ids)

    def append_generation(
        self,
        request: GenerateRequest,
        sampled: Sampled,
        finish: Finish,
        finish_source: FinishSource,
        *,
        grammar_hash: str | None,
        allowed_tools: tuple[str, ...],
    ) -> Generation:
        """Add a turn: the sampled ids and logprobs go into the stream as they are."""
        generation = Generation(
            turn_id=len(self.generations),
            request_id=request.request_id,
            weight_version=sampled.weight_version,
            response_offset=len(self.response_ids),
            num_sampled=len(sampled.token_ids),
            max_tokens=request.max_tokens,
            finish=finish,
            finish_source=finish_source,
            tail_token_ids=sampled.token_ids[-NUM_TAIL_TOKENS:],
            grammar_hash=grammar_hash,
            allowed_tools=allowed_tools,
            sampling=request.sampling,
            num_cached_tokens=sampled.num_cached_tokens,
        )
        self.generations.append(generation)
        self.response_ids.extend(sampled.token_ids)
        self.response_logprobs.extend(sampled.logprobs)
        return generation

    def append_call(self, call: ProposedCall) -> None:
        """Add what was read from the last generation."""
        self.proposed_calls.append(call)

    def append_event(self, outcome: Outcome, observation_ids: Sequence[int] | None, *, call_start: int) -> bool:
        """Add the action of the last generation, and its observation if it fits the budget.

        The action is the call and the end of its turn, without the free text before it: it ends with the last sampled
        token of the generation.

        Args:
            outcome: What the tool did.
            observation_ids: The observation with its template glue; None: the tool has none.
            call_start: Place of the call's begin token among the sampled tokens of the generation.

        Returns:
            False if there is an observation and it was dropped, else True.
        """
        generation = self.generations[-1]
        is_appended = observation_ids is not None and len(observation_ids) <= self.tokens_left
        added_ids = observation_ids if observation_ids is not None and is_appended else ()
        event = Event(
            index=len(self.events),
            turn_id=generation.turn_id,
            kind=outcome.kind,
            action_start_offset=generation.response_offset + call_start,
            action_end_offset=generation.response_offset + generation.num_sampled,
            explore_k=outcome.explore_k,
            candidate_idx=outcome.candidate_idx,
            prefix_before=outcome.prefix_before,
            prefix_after=outcome.prefix_after,
            charged_cost_usd=outcome.charged_cost_usd,
            payload=outcome.payload,
            payload_nonempty=outcome.payload_nonempty,
            tool_response=outcome.tool_response,
            observation_appended=is_appended,
            observation_offset=len(self.response_ids) if is_appended else None,
            observation_length=len(added_ids),
        )
        self.events.append(event)
        self.response_ids.extend(added_ids)
        self.response_logprobs.extend([0.0] * len(added_ids))
        return is_appended or observation_ids is None

    def finish(self, reason: TerminalReason, error: str | None = None) -> EpisodeResult:
        """Close the episode with its one terminal reason."""
        last = self.generations[-1] if self.generations else None
        episode = Episode(
            run_id=self.identity.run_id,
            uid=self.identity.uid,
            session_id=self.identity.session_id,
            attempt_id=self.identity.attempt_id,
            benchmark=self.benchmark.name,
            question_id=self.row.question_id,
            permutation_id=self.row.permutation_id,
            candidate_fingerprint=self.row.candidate_fingerprint,
            submission_field=self.benchmark.submission_field,
            max_explores=self.row.max_explores,
            weight_versions=tuple(sorted({generation.weight_version for generation in self.generations})),
            prompt_tokens=len(self.prompt_ids),
            response_tokens=len(self.response_ids),
            model_tokens=sum(generation.num_sampled for generation in self.generations),
            num_turns=len(self.generations),
            terminal_reason=reason,
            # A submit is always the last generation, so its last token is the last sampled one.
            terminal_offset=last.response_offset + last.num_sampled - 1 if last else None,
            explores_executed=self.num_explores,
            submit_executed=any(event.kind is EventKind.SUBMIT for event in self.events),
            protocol_violations=int(reason in PROTOCOL_VIOLATIONS),
            error=error,
            generations=tuple(self.generations),
            proposed_calls=tuple(self.proposed_calls),
            events=tuple(self.events),
        )
        return EpisodeResult(
            episode=episode,
            prompt_ids=tuple(self.prompt_ids),
            response_ids=tuple(self.response_ids),
            response_logprobs=tuple(self.response_logprobs),
        )
