"""The boundary rollout stage without an engine: random policies under the real grammar matcher, real records."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from atlas_rl.grading.exact import ExactGrader
from atlas_rl.grading.grader import no_answer_grade
from atlas_rl.grammar.compiled import CompiledStates, compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.models.tiny import benchmark_texts
from atlas_rl.models.tokenizer import train_tokenizer
from atlas_rl.records.episode import Sampling
from atlas_rl.records.trajectory import Grade, Trajectory
from atlas_rl.records.vocabulary import EpisodeState, Partition
from atlas_rl.reporting.manifest import DataFile, Manifest, PotentialBinding, build_manifest
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.placement import place, reward_score
from atlas_rl.rewards.score import score
from atlas_rl.runtime.episode import EpisodeResult, run_episode
from atlas_rl.runtime.generate import Generate, GenerateRequest, Sampled
from atlas_rl.runtime.identity import Identity
from atlas_rl.runtime.limits import Limits
from atlas_rl.tasks.benchmark import Benchmark, load_benchmark
from atlas_rl.tasks.boundary import BoundaryConfig, make_boundary_rows
from atlas_rl.tasks.row import Row

EXPERIMENT: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[1] / "configs" / "experiment" / "boundary_rollout.yaml").read_text(encoding="utf-8")
)
"""The stage's own configuration: the limits of the tests are those of the stage."""

LIMITS = Limits(
    max_prompt_length=EXPERIMENT["data"]["max_prompt_length"],
    max_response_length=EXPERIMENT["data"]["max_response_length"],
    max_turns=EXPERIMENT["atlas"]["runtime"]["max_turns"],
)
SESSIONS: int = EXPERIMENT["actor_rollout_ref"]["rollout"]["val_kwargs"]["n"]
REWARD = {"preset": "both"}
RUN_ID = "boundary"


@dataclass(frozen=True)
class World:
    """The boundary benchmark on the tokenizer that the stage's tiny model has."""

    benchmark: Benchmark
    rows: tuple[Row, ...]
    tokens: ProtocolTokens
    template: ChatTemplate
    grammar: BenchmarkGrammar
    compiled: CompiledStates
    vocab_size: int

    def state(self, request: GenerateRequest) -> EpisodeState:
        """The state whose grammar a request carries."""
        return next(state for state in self.grammar if self.grammar[state].structural_tag == request.structural_tag)


@cache
def world() -> World:
    benchmark = load_benchmark("urn_boundary")
    rows = make_boundary_rows(BoundaryConfig(), seed=0)
    tokenizer = train_tokenizer(benchmark_texts(benchmark, rows))
    tokens = ProtocolTokens.from_tokenizer(tokenizer)
    grammar = BenchmarkGrammar.from_benchmark(benchmark, tokens)
    return World(
        benchmark=benchmark,
        rows=tuple(rows),
        tokens=tokens,
        template=ChatTemplate(tokenizer, tokens),
        grammar=grammar,
        compiled=compile_states(grammar, tokens, tokenizer, vocab_size=len(tokenizer)),
        vocab_size=len(tokenizer),
    )


def _sampled(ids: Sequence[int], logprobs: Sequence[float]) -> Sampled:
    return Sampled(token_ids=tuple(ids), logprobs=tuple(logprobs), weight_version=0, num_cached_tokens=None)


def uniform_policy(here: World) -> Generate:
    """Each legal token is as likely as any other, as with random weights."""

    async def generate(request: GenerateRequest) -> Sampled:
        rng = np.random.default_rng(request.sampling.seed)
        matcher = here.compiled.matcher(here.state(request))
        ids: list[int] = []
        logprobs: list[float] = []
        while not matcher.is_complete and len(ids) < request.max_tokens:
            legal = np.flatnonzero(matcher.allowed())
            ids.append(int(rng.choice(legal)))
            logprobs.append(-log(len(legal)))
            assert matcher.accept(ids[-1])
        return _sampled(ids, logprobs)

    return generate


def terse_policy(here: World) -> Generate:
    """No text, each call spelled as the tokenizer spells it, each allowed tool as likely as the other."""

    async def generate(request: GenerateRequest) -> Sampled:
        rng = np.random.default_rng(request.sampling.seed)
        calls = here.grammar[here.state(request)].shortest_calls
        text = here.template.encode_text(calls[int(rng.integers(len(calls)))])
        ids = [here.tokens.call_begin_id, *text, here.tokens.call_end_id, here.tokens.end_of_turn_id]
        ids = ids[: request.max_tokens]
        return _sampled(ids, [-0.5] * len(ids))

    return generate


async def play(row: Row, uid: str, session_id: int, generate: Generate) -> Trajectory:
    """One episode under the stage's limits, graded and scored."""
    here = world()
    identity = Identity(run_id=RUN_ID, uid=uid, session_id=session_id, attempt_id=0, global_steps=0, run_seed=0)
    result = await run_episode(
        row=row,
        benchmark=here.benchmark,
        grammar=here.grammar,
        tokens=here.tokens,
        template=here.template,
        decode=here.template.decode,
        generate=generate,
        limits=LIMITS,
        identity=identity,
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=-1, seed=None),
        vocab_size=here.vocab_size,
    )
    answer = result.submitted_answer
    grade = no_answer_grade() if answer is None else await ExactGrader().grade(answer, row.ground_truth)
    return _trajectory(result, row, grade)


def _trajectory(result: EpisodeResult, row: Row, grade: Grade) -> Trajectory:
    episode = result.episode
    scored = score(episode, grade, config=RewardConfig.from_mapping(REWARD))
    shared = ("run_id", "uid", "session_id", "attempt_id", "benchmark", "question_id", "permutation_id")
    return Trajectory(
        **{name: getattr(episode, name) for name in shared},
        candidate_fingerprint=episode.candidate_fingerprint,
        num_turns=episode.num_turns,
        data_source=row.data_source,
        partition=Partition.VAL,
        global_steps=0,
        prompt_ids=result.prompt_ids,
        response_ids=result.response_ids,
        response_logprobs=result.response_logprobs,
        response_mask=result.response_mask,
        reward_score=reward_score(place(scored)),
        reward=scored.breakdown,
        reward_trace=place(scored),
        ground_truth=row.ground_truth,
        grade=grade,
        written_at="2026-01-02T03:04:05.000006+00:00",
        extra=row.facts,
        episode=episode,
    )


@cache
def stage(policy: Callable[[World], Generate], sessions: int = SESSIONS) -> tuple[Trajectory, ...]:
    """Every episode of the stage: each row as often as the experiment samples it, or ``sessions`` times."""
    generate = policy(world())

    async def all_episodes() -> list[Trajectory]:
        return [
            await play(row, f"u{place}", session_id, generate)
            for place, row in enumerate(world().rows)
            for session_id in range(sessions)
        ]

    return tuple(asyncio.run(all_episodes()))


def manifest(num_rows: int, sessions: int = SESSIONS, **runtime: Any) -> Manifest:
    """The run.json of a stage over the first ``num_rows`` rows; ``runtime`` changes atlas.runtime."""
    here = world()
    tokens = here.tokens
    config = {
        "atlas": {
            "runtime": {"max_turns": LIMITS.max_turns, "grammar": True, **runtime},
            "reward": RewardConfig.from_mapping(REWARD).to_mapping(),
        },
        "data": {
            "max_prompt_length": LIMITS.max_prompt_length,
            "max_response_length": LIMITS.max_response_length,
            "val_files": "rows.parquet",
            "val_max_samples": -1,
        },
        "actor_rollout_ref": {"rollout": {"val_kwargs": {"n": sessions}}},
    }
    return build_manifest(
        RUN_ID,
        config,
        potential=PotentialBinding(name="zero", sha256="0" * 64),
        grammar_hashes={f"urn_boundary/{state}": here.grammar[state].sha256 for state in here.grammar},
        protocol_token_ids={
            "call_begin": tokens.call_begin_id,
            "call_end": tokens.call_end_id,
            "end_of_turn": tokens.end_of_turn_id,
            "stop": list(tokens.stop_ids),
            "control": list(tokens.control_ids),
        },
        data_files={"rows.parquet": DataFile(sha256="0" * 64, num_rows=num_rows)},
    )
