"""Weights that reach the rollout and are seen to, and a reference pass that leaves the critic alone.

Four real runs of three steps, the first of them a critic-only one: as it is; with both KL terms at coefficient 0; with
both in earnest and merged delivery; and with a rollout that is left on its first weights.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_main_job import ROOT, train_command
from tiny_urn import write_tiny_urn

from atlas_rl.checkpoint.manifest import read_manifest
from atlas_rl.data.parquet import read_rows
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.objective.advantages import gae
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.reporting.metrics import read_metrics
from atlas_rl.reporting.weight_sync import Delivery, ProbeReading, read_readings
from atlas_rl.rewards.placement import token_rewards
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.sequential import messages

pytestmark = pytest.mark.slow
NUM_STEPS = 3
CRITIC_ONLY = 1
PLAIN = ("trainer.critic_warmup=2", "actor_rollout_ref.actor.optim.lr_scheduler_type=constant")
KL = ("algorithm.use_kl_in_reward=true", "actor_rollout_ref.actor.use_kl_loss=true")

LEFT_BEHIND = """
from atlas_rl.cli import run_log, train

def with_a_deaf_rollout(console_line):
    from atlas_rl.training import task_runner
    class Deaf(task_runner.AtlasTrainer):
        def on_init_end(self):
            super().on_init_end()
            self.checkpoint_manager.update_weights = SAYS
    task_runner.AtlasTrainer = Deaf
    return console_line

original = run_log.raw_output_to
run_log.raw_output_to = lambda log: with_a_deaf_rollout(original(log))
train.main()
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions and a model."""
    work = tmp_path_factory.mktemp("weights")
    write_tiny_urn(work, 64)
    return work


def command(work: Path, run_id: str, *more: str) -> list[str]:
    return train_command(
        work, work / "model", *PLAIN, f"trainer.total_training_steps={NUM_STEPS}", f"trainer.save_freq={NUM_STEPS}",
        f"trainer.test_freq={NUM_STEPS}", f"atlas.run.id={run_id}", *more,
    )  # fmt: skip


def finish(work: Path, run_id: str, *more: str) -> Path:
    done = subprocess.run(
        command(work, run_id, *more), cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return work / "artifacts" / run_id


@pytest.fixture(scope="module")
def plain(work: Path) -> Path:
    """A run with adapter delivery and no reference pass."""
    return finish(work, "plain")


@pytest.fixture(scope="module")
def idle_kl(work: Path) -> Path:
    """The same run with a reference pass whose two KL terms weigh nothing."""
    return finish(
        work, "idle_kl", *KL, "algorithm.kl_ctrl.kl_coef=0.0", "actor_rollout_ref.actor.kl_loss_coef=0.0"
    )  # fmt: skip


@pytest.fixture(scope="module")
def kl_and_merged(work: Path) -> Path:
    """The same run with KL terms that weigh something and merged delivery."""
    return finish(
        work, "kl_merged", *KL, "algorithm.kl_ctrl.kl_coef=0.05", "actor_rollout_ref.actor.kl_loss_coef=0.05",
        "actor_rollout_ref.model.lora.merge=true",
    )  # fmt: skip


def by_name(run: Path) -> dict[str, ProbeReading]:
    return {reading.name: reading for reading in read_readings(run)}


@pytest.mark.parametrize(("fixture", "delivery"), [("plain", Delivery.ADAPTER), ("kl_and_merged", Delivery.MERGED)])
def test_answers_change_after_actor_steps_and_after_nothing_else(
    fixture: str, delivery: Delivery, request: pytest.FixtureRequest
):
    readings = read_readings(request.getfixturevalue(fixture))
    seen = [
        (one.name, one.comparison.must_change, one.comparison.num_changed_tokens > 0)
        for one in readings
        if one.comparison is not None
    ]
    assert seen == [
        ("before_validation_0", False, False), ("after_step_1", False, False), ("after_step_2", True, True),
        ("after_step_3", True, True), ("before_validation_3", False, False),
    ]  # fmt: skip
    assert readings[0].name == "init"
    assert {one.delivery for one in readings} == {delivery}
    critics = [one.critic_sha256 for one in readings]
    assert len(set(critics)) == 1 + NUM_STEPS


def test_the_prefix_cache_is_empty_after_a_delivery_and_full_otherwise(plain: Path):
    readings = by_name(plain)
    cached = {name: reading.replicas[0].num_cached_tokens for name, reading in readings.items()}
    assert {cached[name] for name in ("init", "after_step_1", "after_step_2", "after_step_3")} == {0}
    # The probe itself filled it after the delivery: without this the check above could not fail.
    assert (cached["before_validation_3"] or 0) > 0


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("lambda step: None", "says that its weights are of step 0"),
        (
            "lambda step: [__import__('ray').get(r.server_handle.set_global_steps.remote(step)) or "
            "__import__('ray').get(r.server_handle.clear_kv_cache.remote()) "
            "for r in self.llm_server_manager.get_replicas()]",
            "left on old weights",
        ),
    ],
)
def test_a_rollout_left_on_old_weights_stops_the_run_and_the_step_is_named(work: Path, says: str, message: str):
    run_id = f"deaf-{len(says)}"
    program = LEFT_BEHIND.replace("SAYS", says)
    arguments = command(work, run_id)[3:]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 1, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert message in done.stderr
    step = 1 if "says" in message else 2
    assert f"step {step}, weight-sync probe after_step_{step}" in done.stderr
    assert not (work / "artifacts" / run_id / "weight_sync" / f"after_step_{step + 1}.json").exists()


def tensors(run: Path, step: int, name: str) -> dict[str, np.ndarray]:
    loaded = np.load(run / "train" / f"step_{step}" / "tensors.npz")
    return {key: loaded[key] for key in loaded if key.endswith(f"/{name}")}


def test_values_and_updates_are_to_the_bit_those_without_a_reference_pass(plain: Path, idle_kl: Path):
    for step in range(1, NUM_STEPS + 1):
        without, with_reference = (tensors(run, step, "values") for run in (plain, idle_kl))
        assert without.keys() == with_reference.keys()
        for key in without:
            assert np.array_equal(without[key], with_reference[key]), f"step {step} {key}"
        # A head that starts at 0 says 0 whether its adapter is on or off; from the second step on it cannot hide.
        assert any(values.any() for values in without.values()) == (step > 1)
    saved = [read_manifest(run / "checkpoints" / f"global_step_{NUM_STEPS}").files for run in (plain, idle_kl)]
    names = [name for name in saved[0] if name.endswith(("trainable.safetensors", "optimizer.safetensors"))]
    assert len(names) == 4
    assert {name: saved[0][name].sha256 for name in names} == {name: saved[1][name].sha256 for name in names}


def test_kl_is_0_while_the_actor_is_the_reference_and_above_0_after(kl_and_merged: Path):
    steps = {
        line["step"]: line
        for line in read_metrics(kl_and_merged / "metrics.jsonl").lines
        if "training/actor_updates" in line
    }
    assert steps[1]["actor/reward_kl_penalty"] == steps[2]["actor/reward_kl_penalty"] == 0.0
    assert steps[2]["actor/kl_loss"] == 0.0
    assert steps[3]["actor/reward_kl_penalty"] > 0
    assert steps[3]["actor/kl_loss"] > 0


def test_kl_is_in_the_actors_loss_with_its_coefficient(kl_and_merged: Path):
    steps = [line for line in read_metrics(kl_and_merged / "metrics.jsonl").lines if "actor/kl_loss" in line]
    assert [line["step"] for line in steps] == [2, 3]
    for line in steps:
        assert line["actor/loss"] - line["actor/pg_loss"] == pytest.approx(0.05 * line["actor/kl_loss"], rel=1e-4)


def test_kl_moves_the_advantages_away_from_what_the_records_alone_give(kl_and_merged: Path):
    rows = {f"{t.uid}_{t.session_id}": t for t in TrajectoryStore(kl_and_merged / "train")}
    for step in range(1, NUM_STEPS + 1):
        values, found = (tensors(kl_and_merged, step, name) for name in ("values", "raw_advantages"))
        worst = 0.0
        for key, raw in found.items():
            row = rows[key.split("/")[0]]
            rewards = torch.tensor([token_rewards(row.reward_trace, len(row.response_ids))])
            own = torch.tensor(values[key.replace("raw_advantages", "values")])[None]
            expected = gae(rewards, own, torch.tensor([row.response_mask]), 1.0, 0.9).raw_BT[0].numpy()
            worst = max(worst, float(np.abs(expected - raw).max()))
        # Up to the second step the actor is its own reference.
        assert (worst > 1e-3) if step == NUM_STEPS else (worst < 1e-5)


IN_VLLM = """
import json, sys
import atlas_rl.training.plugin
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.lora.request import LoRARequest

base, adapter, asked, num_tokens = sys.argv[1:]
prompts = json.loads(asked)
# verl's rollout cannot sample what the tokenizer does not know, though the model has a row for it.
known = list(range(int(num_tokens)))
llm = LLM(base, dtype="float32", enforce_eager=True, enable_lora=True, max_lora_rank=8, max_loras=1,
          max_model_len=512, logprobs_mode="processed_logprobs", enable_prefix_caching=False,
          enable_chunked_prefill=False, seed=0)
params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=0, ignore_eos=True, detokenize=False,
                        allowed_token_ids=known)
answers = []
for prompt in prompts:
    out = llm.generate(TokensPrompt(prompt_token_ids=prompt), params, use_tqdm=False,
                       lora_request=LoRARequest("exported", 1, adapter))[0].outputs[0]
    answers.append([list(out.token_ids), [step[token].logprob for token, step in zip(out.token_ids, out.logprobs)]])
print("ANSWERS " + json.dumps(answers))
"""


CPU_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def probe_prompts(work: Path, tokenizer: Any) -> list[list[int]]:
    template = ChatTemplate(
        tokenizer, ProtocolTokens.from_tokenizer(tokenizer), template_kwargs={"enable_thinking": False}
    )
    urn = load_benchmark("urn")
    tools = [urn.explore.openai, urn.submit.openai]
    return [template.prompt_ids(messages(urn, row), tools) for row in read_rows(work / "val.parquet")[:4]]


def test_the_exported_actor_answers_in_vllm_as_the_rollout_did(plain: Path, work: Path, tmp_path: Path):
    from transformers import AutoTokenizer

    step, out = plain / "checkpoints" / f"global_step_{NUM_STEPS}", tmp_path / "exported"
    export = [sys.executable, "-m", "atlas_rl.cli.main", "lora", "export", str(step)]
    export += ["--base", str(work / "model"), "--out", str(out)]
    subprocess.run(export, cwd=ROOT, check=True, capture_output=True, timeout=300)
    tokenizer = AutoTokenizer.from_pretrained(work / "model")
    asked = [json.dumps(probe_prompts(work, tokenizer)), str(len(tokenizer))]
    environment = {**os.environ, **CPU_ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", IN_VLLM, str(work / "model"), str(out / "actor"), *asked],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    answers = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("ANSWERS "))[8:])
    expected = by_name(plain)[f"after_step_{NUM_STEPS}"].replicas[0].answers
    assert [ids for ids, _ in answers] == [list(answer.token_ids) for answer in expected]
    for (_, logprobs), answer in zip(answers, expected, strict=True):
        assert logprobs == pytest.approx(answer.logprobs, abs=1e-5)
