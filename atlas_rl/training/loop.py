"""The agent loop ``atlas_sequential``: one episode inside verl, recorded, graded, scored and placed."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from atlas_rl.data.parquet import row_from_extra_info
from atlas_rl.grading.grader import no_answer_grade
from atlas_rl.records.episode import Episode, Sampling
from atlas_rl.records.trajectory import Grade, Trajectory
from atlas_rl.records.vocabulary import CUT_BY_LENGTH_CAP, Partition, TerminalReason
from atlas_rl.rewards.invariants import mapped_slots_minus_events, owed_rewards
from atlas_rl.rewards.placement import place, reward_score, token_rewards
from atlas_rl.rewards.potentials import Potential
from atlas_rl.rewards.score import Scored, score
from atlas_rl.runtime.episode import EpisodeResult, run_episode
from atlas_rl.runtime.forced import mark_forced
from atlas_rl.runtime.identity import Identity
from atlas_rl.runtime.limits import Limits
from atlas_rl.tasks.row import Row
from atlas_rl.training.config import AtlasConfig, atlas_config
from atlas_rl.training.generate import ServerGenerate
from atlas_rl.training.sink import TrajectorySink
from atlas_rl.training.surface import Surface, surface
from atlas_rl.training.unjudged import fault_if_unjudged


class AtlasOutput(AgentLoopOutput):  # type: ignore[misc]
    """verl's output with one reward a token in place of one on the last token."""

    token_rewards: list[float]
    """[T] float32 values."""

    def as_dict(self) -> dict[str, Any]:
        """The row's fields for the TransferQueue."""
        fields: dict[str, Any] = super().as_dict()
        fields["rm_scores"] = torch.tensor(fields.pop("token_rewards"), dtype=torch.float32)
        return fields


@dataclass(frozen=True, slots=True)
class _Shared:
    """What every episode of a worker process uses."""

    config: AtlasConfig
    model_folder: Path
    limits: Limits
    potential: Potential
    sink: TrajectorySink


_shared: _Shared | None = None


def _shared_state(config: Any) -> _Shared:
    global _shared
    if _shared is None:
        atlas = atlas_config(config)
        _shared = _Shared(
            config=atlas,
            model_folder=Path(config.actor_rollout_ref.model.path),
            limits=Limits(
                max_prompt_length=config.data.max_prompt_length,
                max_response_length=config.data.max_response_length,
                max_turns=atlas.runtime.max_turns,
            ),
            potential=atlas.potentials.potential(atlas.reward),
            sink=TrajectorySink(atlas.run.folder, atlas.run.train_fraction),
        )
    return _shared


@register("atlas_sequential")
class AtlasSequentialLoop(AgentLoopBase):  # type: ignore[misc]
    """Explore and submit, one call a turn, on an append-only token stream."""

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, **_unused: Any) -> None:
        # verl builds one object a trajectory; its own __init__ would build a tokenizer merger that is never used here.
        self.config = trainer_config.config
        self.server_manager = server_manager
        self.tokenizer = tokenizer

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AtlasOutput:
        """Run one episode of the row in ``kwargs`` and store its trajectory.

        ``sampling_params["validate"]`` is set by this project's worker; verl keeps it from the loop.
        """
        shared = _shared_state(self.config)
        row = row_from_extra_info(kwargs["extra_info"], kwargs["reward_model"], kwargs["data_source"])
        here = surface(
            kwargs["extra_info"]["benchmark_spec"], self.tokenizer, shared.model_folder, shared.config.runtime
        )
        identity = Identity(
            run_id=shared.config.run.id,
            uid=kwargs["uid"],
            session_id=int(kwargs["session_id"]),
            attempt_id=shared.config.run.attempt_id,
            global_steps=int(kwargs["global_steps"]),
            run_seed=shared.config.run.seed,
        )
        partition = Partition.VAL if sampling_params["validate"] else Partition.TRAIN
        result = await self._episode(row, here, identity, sampling_params, shared)
        episode = mark_forced(result.episode, result.response_ids, here.book)
        grade, episode = await _graded(episode, result.submitted_answer, row, here)
        scored = score(episode, grade, config=shared.config.reward, potential=shared.potential, subset=row.subset)
        trajectory = _trajectory(result, episode, row, grade, scored, partition, identity)
        digest = shared.sink.write(trajectory)
        return _output(trajectory, scored, digest, here, kwargs["extra_info"]["benchmark_spec"])

    async def _episode(
        self, row: Row, here: Surface, identity: Identity, sampling_params: dict[str, Any], shared: _Shared
    ) -> EpisodeResult:
        async with ServerGenerate(self.server_manager, identity.request_id) as generate:
            return await run_episode(
                row=row,
                benchmark=here.benchmark,
                grammar=here.grammar,
                is_constrained=shared.config.runtime.grammar,
                reserve_call=shared.config.runtime.reserve_call,
                tokens=here.tokens,
                template=here.template,
                decode=here.template.decode,
                generate=generate,
                limits=shared.limits,
                identity=identity,
                sampling=Sampling(
                    temperature=float(sampling_params["temperature"]),
                    top_p=float(sampling_params["top_p"]),
                    top_k=int(sampling_params["top_k"]),
                    seed=None,
                ),
                vocab_size=here.vocab_size,
            )


async def _graded(episode: Episode, answer: str | None, row: Row, here: Surface) -> tuple[Grade, Episode]:
    """The grade of the submit; an answer that could not be judged is a fault of the row, not a wrong answer."""
    if answer is None or episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR:
        return no_answer_grade(), episode
    grade = await here.grader.grade(answer, row.ground_truth)
    return grade, fault_if_unjudged(episode, grade)


def _trajectory(
    result: EpisodeResult,
    episode: Episode,
    row: Row,
    grade: Grade,
    scored: Scored,
    partition: Partition,
    identity: Identity,
) -> Trajectory:
    placed = place(scored)
    return Trajectory(
        run_id=episode.run_id,
        uid=episode.uid,
        session_id=episode.session_id,
        attempt_id=episode.attempt_id,
        benchmark=episode.benchmark,
        question_id=episode.question_id,
        permutation_id=episode.permutation_id,
        candidate_fingerprint=episode.candidate_fingerprint,
        data_source=row.data_source,
        partition=partition,
        global_steps=identity.global_steps,
        num_turns=episode.num_turns,
        prompt_ids=result.prompt_ids,
        response_ids=result.response_ids,
        response_logprobs=result.response_logprobs,
        response_mask=result.response_mask,
        reward_score=reward_score(placed),
        reward=scored.breakdown,
        reward_trace=placed,
        ground_truth=row.ground_truth,
        grade=grade,
        written_at=datetime.now(UTC).isoformat(timespec="microseconds"),
        extra={"subset": row.subset, **row.facts},
        episode=episode,
    )


def _output(
    trajectory: Trajectory, scored: Scored, digest: str | None, here: Surface, benchmark_spec: str
) -> AtlasOutput:
    """The row for verl. A fault trains nothing: its mask is 0 throughout, whatever it sampled before it failed."""
    episode = trajectory.episode
    fault = episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR
    response_ids, mask = list(trajectory.response_ids), list(trajectory.response_mask)
    logprobs = list(trajectory.response_logprobs)
    rewards = token_rewards(trajectory.reward_trace, len(trajectory.response_ids))
    if not response_ids:  # verl cannot hold a row without a response token
        response_ids, mask, logprobs, rewards = [here.tokens.end_of_turn_id], [0], [0.0], [0.0]
    if fault:
        mask = [0] * len(mask)
    versions = episode.weight_versions or (max(trajectory.global_steps - 1, 0),)
    return AtlasOutput(
        prompt_ids=list(trajectory.prompt_ids),
        response_ids=response_ids,
        response_mask=mask,
        response_logprobs=logprobs,
        token_rewards=rewards,
        reward_score=trajectory.reward_score,
        num_turns=episode.num_turns,
        metrics=AgentLoopMetrics(),
        extra_fields={
            "min_global_steps": versions[0],
            "max_global_steps": versions[-1],
            "record_sha256": digest,
            "error": episode.error,
            "is_fault": fault,
            "is_capped": episode.terminal_reason in CUT_BY_LENGTH_CAP,
            "breakdown": scored.breakdown.model_dump(mode="json"),
            "step": trajectory.global_steps,
            "benchmark_spec": benchmark_spec,
            "generations": [(g.response_offset, g.num_sampled, g.grammar_hash) for g in episode.generations],
            "forced_spans": list(episode.forced_spans),
            "owed_rewards": owed_rewards(scored.breakdown, episode),
            "decomposition_error": scored.decomposition_error,
            "mapped_slots_minus_events": mapped_slots_minus_events(trajectory.reward_trace, episode),
        },
    )
