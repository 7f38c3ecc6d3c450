"""The main job with nothing replaced: verl's trainer, Ray, vLLM, our loop, on two CPU cores; two PPO steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from atlas_rl.data.parquet import write_rows
from atlas_rl.grammar.compiled import compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import EpisodeState, TerminalReason
from atlas_rl.reporting.metrics import read_metrics
from atlas_rl.reporting.summary import summarise_run
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.invariants import row_errors
from atlas_rl.rewards.placement import place, reward_score
from atlas_rl.rewards.score import score
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows

ROOT = Path(__file__).resolve().parents[2]
NUM_QUESTIONS, NUM_SESSIONS, NUM_VAL, NUM_STEPS = 4, 4, 8, 2
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained tiny model: its episodes are random, so all kinds of calls occur."""
    from atlas_rl.models.tiny import build_tiny_model

    folder = tmp_path_factory.mktemp("model") / "tiny"
    rows = make_rows(UrnConfig(), 64, 7, "tokenizer-")
    build_tiny_model(folder, benchmark=load_benchmark("urn"), rows=rows, seed=0)
    return folder


def train_command(work: Path, model: Path, *more: str) -> list[str]:
    overrides = [
        "experiment=urn_demo", "atlas.run.id=job", f"atlas.run.artifacts_dir={work}/artifacts",
        f"atlas.run.logs_dir={work}/logs", f"data.train_files={work}/train.parquet",
        f"data.val_files={work}/val.parquet", f"actor_rollout_ref.model.path={model}",
        f"data.train_batch_size={NUM_QUESTIONS}", f"actor_rollout_ref.rollout.n={NUM_SESSIONS}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={NUM_QUESTIONS}", f"critic.ppo_mini_batch_size={NUM_QUESTIONS}",
        f"trainer.total_training_steps={NUM_STEPS}", f"trainer.test_freq={NUM_STEPS}", "trainer.critic_warmup=2",
        "atlas.policy.logprobs=grammar",
    ]  # fmt: skip
    return [sys.executable, "-m", "atlas_rl.cli.train", *overrides, *more]


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts of a finished run."""
    work = tmp_path_factory.mktemp("run")
    write_rows(make_rows(UrnConfig(), 64, 0, "train-"), "urn", work / "train.parquet")
    write_rows(make_rows(UrnConfig(), NUM_VAL, 1, "val-"), "urn", work / "val.parquet")
    command = train_command(work, model)
    finished = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=900)
    log = work / "logs" / "job.attempt0.log"
    tail = log.read_text(errors="replace")[-4000:] if log.is_file() else ""
    assert finished.returncode == 0, f"{finished.stdout[-2000:]}\n{finished.stderr[-2000:]}\n{tail}"
    return work / "artifacts" / "job"


@pytest.fixture(scope="module")
def trajectories(run: Path) -> list[Trajectory]:
    return list(TrajectoryStore(run))


def test_every_episode_of_every_step_is_stored_once(trajectories: list[Trajectory]):
    counts = {
        (partition, step): sum(t.partition == partition and t.global_steps == step for t in trajectories)
        for partition in ("train", "val")
        for step in range(NUM_STEPS + 1)
    }
    assert counts == {
        ("train", 0): 0, ("train", 1): 16, ("train", 2): 16,
        ("val", 0): 8, ("val", 1): 0, ("val", 2): 8,
    }  # fmt: skip
    assert len({(t.uid, t.session_id) for t in trajectories}) == len(trajectories)


def test_what_ran_is_legal_under_the_grammar_and_nothing_failed(trajectories: list[Trajectory], model: Path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokens = ProtocolTokens.from_tokenizer(tokenizer)
    grammars = BenchmarkGrammar.from_benchmark(load_benchmark("urn"), tokens)
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    compiled = compile_states(grammars, tokens, tokenizer, vocab_size=vocab_size)
    hashes = {grammars[state].sha256 for state in EpisodeState}
    for trajectory in trajectories:
        assert trajectory.episode.terminal_reason in {TerminalReason.SUBMITTED, TerminalReason.MAX_TURNS}
        assert trajectory.episode.protocol_violations == 0
        for generation, (start, end) in zip(
            trajectory.episode.generations, trajectory.episode.sampled_spans, strict=True
        ):
            state = EpisodeState.EXHAUSTED if generation.allowed_tools == ("submit",) else EpisodeState.OPEN
            assert generation.grammar_hash in hashes
            assert compiled.accepts(state, trajectory.response_ids[start:end])


def test_a_stored_row_scores_to_the_same_bits(trajectories: list[Trajectory]):
    config = RewardConfig.from_mapping({"preset": "dollar_0.1"})
    for trajectory in trajectories:
        scored = score(trajectory.episode, trajectory.grade, config=config, subset=trajectory.reward.subset)
        assert scored.breakdown == trajectory.reward
        assert place(scored) == trajectory.reward_trace
        assert reward_score(place(scored)) == trajectory.reward_score
        assert row_errors(scored, trajectory.episode) == (0.0, 0.0, 0)


def test_what_leaves_the_trainer_is_what_its_losses_used(run: Path, trajectories: list[Trajectory]):
    for step in range(1, NUM_STEPS + 1):
        tensors = np.load(run / "train" / f"step_{step}" / "tensors.npz")
        rows = [t for t in trajectories if t.partition == "train" and t.global_steps == step]
        names = ("advantages", "policy_mask", "raw_advantages", "returns", "values")
        assert sorted(tensors) == sorted(f"{t.uid}_{t.session_id}/{name}" for t in rows for name in names)
        whitened = []
        for row in rows:
            key = f"{row.uid}_{row.session_id}"
            sampled = np.array(row.response_mask, dtype=bool)
            policy = sampled.copy()
            for start, end in row.episode.forced_spans:
                policy[start:end] = False
            assert np.array_equal(tensors[f"{key}/policy_mask"], policy)
            returns, values = tensors[f"{key}/returns"], tensors[f"{key}/values"]
            targets = tensors[f"{key}/raw_advantages"] + values
            np.testing.assert_allclose(returns[sampled], targets[sampled], atol=1e-6)
            assert not returns[~sampled].any()
            assert not tensors[f"{key}/advantages"][~policy].any()
            whitened.append(tensors[f"{key}/advantages"][policy])
        everything = np.concatenate(whitened).astype(np.float64)
        assert abs(everything.mean()) < 1e-5
        assert abs(everything.var(ddof=1) - 1) < 1e-4


def test_engine_and_trainer_agree_on_every_token_of_every_step(run: Path, trajectories: list[Trajectory]):
    steps = [line for line in read_metrics(run / "metrics.jsonl").lines if "training/global_step" in line]
    for step in steps:
        assert step["mismatch/free/logprob_difference_max"] <= 1e-4
        assert step["mismatch/forced/logprob_difference_max"] == 0.0
        rows = [t for t in trajectories if t.partition == "train" and t.global_steps == step["step"]]
        num_forced = sum(end - start for row in rows for start, end in row.episode.forced_spans)
        num_sampled = sum(sum(row.response_mask) for row in rows)
        assert num_forced > 0
        assert step["mismatch/forced_token_fraction"] == pytest.approx(num_forced / num_sampled, rel=1e-6)
        assert step["capmask/policy_tokens"] == num_sampled - num_forced


def test_the_first_step_updates_the_critic_alone_and_the_second_both(run: Path):
    steps = {line["step"]: line for line in read_metrics(run / "metrics.jsonl").lines if "training/global_step" in line}
    assert steps[1]["training/critic_updates"] == 1
    assert steps[1]["training/actor_updates"] == 0
    assert steps[2]["training/critic_updates"] == 2
    assert steps[2]["training/actor_updates"] == 1
    # The first mini-batch of an epoch sees the policy that made the old log-probs.
    assert (steps[2]["actor/ppo_kl"], steps[2]["actor/pg_clipfrac"]) == (0.0, 0.0)
    assert steps[2]["actor/grad_norm"] > 0


def test_the_summary_reads_the_same_promises_back(run: Path):
    summary = summarise_run(run)
    assert (summary.num_training_steps, summary.num_training_episodes) == (2, 32)
    assert [validation.step for validation in summary.validations] == [0, 2]
    assert summary.protocol_violations == 0
    assert summary.invariant_max == {
        "reward/mapping_sum_error_max": 0.0,
        "reward/decomposition_error_max": 0.0,
        "reward/mapped_slots_minus_events_max": 0.0,
        "protocol/violations_in_batch": 0.0,
    }


def test_a_second_run_of_the_same_id_is_refused_before_ray_starts(run: Path, model: Path):
    command = train_command(run.parents[1], model, "trainer.test_freq=1")
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "run.json" in refused.stderr
    assert "trainer.test_freq=2, now 1" in refused.stderr
