"""Memory and seconds of a PPO step's model passes, actor and critic in one process, from a config.json alone.

    python scripts/bench/update_memory.py --tokenizer DIR --layers 64 --hidden 5120 --tokens 24576 --offload exact

Random weights are drawn on the card in bf16: nothing is written but a folder of kilobytes. There is neither Ray, nor a
rollout engine, nor a TransferQueue. Each stage prints one line of JSON; the whole goes to OUT/memory_check.json, which
``atlas-rl check memory OUT`` reads. ``--offload`` says where the model that does not work is meanwhile: on the card
(none), in torch's page-locked memory as verl puts it there (verl), or in host memory of its exact size (exact).
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_model import qwen3_tokenizer, set_cpu_environment, write_model

BUDGETS = (
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "critic.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile",
)


def main() -> None:
    """Build, run the stages, print and write.

    27B dense: ``--layers 77 --hidden 5120 --intermediate 17408``, which is 27.2B parameters with Qwen3's vocabulary.
    8B: ``--layers 36 --hidden 4096``.
    """
    arguments = _arguments()
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "atlas_rl.training.plugin"
    if arguments.hardware == "cpu":
        set_cpu_environment()
    else:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    from random_model import drawn_weights

    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = _model_folder(Path(scratch), arguments)
        with drawn_weights("cuda" if arguments.hardware == "gpu" else "cpu"):
            _measure(Path(scratch), tokenizer, arguments)


def _model_folder(folder: Path, arguments: argparse.Namespace) -> Any:
    """config.json and a tokenizer, no weights."""
    tokenizer = qwen3_tokenizer(arguments.tokenizer)
    write_model(
        folder, tokenizer, num_layers=arguments.layers, hidden_size=arguments.hidden,
        max_positions=max(40960, arguments.tokens),
    )  # fmt: skip
    path = folder / "config.json"
    if arguments.config:
        config = json.loads(arguments.config.read_text(encoding="utf-8"))
        if config.get("vocab_size", 0) < len(tokenizer):
            raise SystemExit(
                f"--config {arguments.config}: vocab_size {config.get('vocab_size')} is below the {len(tokenizer)} "
                "tokens of the tokenizer; raise it there"
            )
    else:
        config = json.loads(path.read_text(encoding="utf-8"))
        given = {
            "intermediate_size": arguments.intermediate,
            "num_attention_heads": arguments.heads,
            "num_key_value_heads": arguments.kv_heads,
        }
        config |= {name: value for name, value in given.items() if value is not None}
    path.write_text(json.dumps(config), encoding="utf-8")
    return tokenizer


def _measure(model: Path, tokenizer: Any, arguments: argparse.Namespace) -> None:
    import torch
    from host_copies import exact_offload

    from atlas_rl.cli.composition import compose
    from atlas_rl.reporting.memory import Stage, memory_report, write_memory_report
    from atlas_rl.training.memory_meter import is_out_of_memory, model_facts, process_meter
    from atlas_rl.training.standalone import build_actor, build_critic, only_rank

    [config] = compose(_keys(model, arguments))
    device = torch.device("cuda" if arguments.hardware == "gpu" else "cpu")
    shutil.rmtree(arguments.out / "checkpoints", ignore_errors=True)
    stages = Stages(_head(config, arguments), arguments.out)
    with only_rank():
        meter = process_meter()
        workers: dict[str, Any] = {}
        try:
            for name, build in (("critic", build_critic), ("actor", build_actor)):
                if name in arguments.models:
                    with stages.measured(Stage.MODELS, None):
                        workers[name] = build(config)
                        engine = _engine(workers[name])
                        if arguments.offload == "exact":
                            exact_offload(engine, device)
                        meter.watch(engine, name)
                    stages.models[name] = model_facts(engine)
            for step in range(1, arguments.steps + 1):
                _step(workers, _batch(tokenizer, step, arguments), step, stages, arguments)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            stages.failure = " ".join(str(error).split())
    report = memory_report(stages.head(), stages.stages, stages.failure)
    write_memory_report(arguments.out, report)
    gib = 2**30
    print(
        f"update_memory: steps={report.num_steps} rows={report.num_rows} longest_row={report.longest_row} "
        f"peak_gib={report.peak_bytes / gib:.2f} margin_gib={(report.margin_bytes or 0) / gib:.2f} "
        f"host_margin_gib={(report.host_margin_bytes or 0) / gib:.2f} seconds={report.seconds:.1f}"
    )
    if report.failure or report.missing:
        raise SystemExit(f"stopped: {report.failure}; missing: {', '.join(report.missing) or 'nothing'}")


class Stages:
    """The stages so far; each is printed as it ends, and written, so that a kill leaves them."""

    def __init__(self, head: dict[str, Any], out: Path) -> None:
        self._head = head
        self._out = out
        self.models: dict[str, Any] = {}
        self.stages: list[Any] = []
        self.failure: str | None = None

    def head(self) -> Any:
        """What is known of the check by now."""
        from atlas_rl.reporting.memory import ReportHead

        return ReportHead(**self._head, models=self.models)

    @contextmanager
    def measured(self, stage: Any, step: int | None) -> Iterator[None]:
        """Measure a block as one stage, whether it ends well or not."""
        from atlas_rl.reporting.memory import StageMemory, memory_report, write_memory_report
        from atlas_rl.training.memory_meter import process_meter

        meter = process_meter()
        meter.start()
        started = time.perf_counter()
        try:
            yield
        finally:
            rank = meter.stop(0)
            seconds = time.perf_counter() - started
            found = StageMemory(stage=stage, step=step, seconds=seconds, is_engine_awake=False, ranks=(rank,))
            self.stages.append(found)
            write_memory_report(self._out, memory_report(self.head(), self.stages, self.failure))
            gib = 2**30
            line = {
                "stage": found.name,
                "seconds": round(seconds, 3),
                "allocated_peak_gib": rank.allocated_peak_bytes and round(rank.allocated_peak_bytes / gib, 2),
                "held_peak_gib": round(rank.held_peak_bytes / gib, 2),
                "margin_gib": round(rank.margin_bytes / gib, 2),
                "host_gib": round(rank.host_bytes / gib, 2),
                "host_peak_gib": round(rank.host_peak_bytes / gib, 2),
                "host_available_gib": round(rank.host_least_available_bytes / gib, 2),
                "passes": [one.model_dump() for one in rank.passes if one.forward or one.training],
                "out_of_memory": rank.out_of_memory,
            }
            print(json.dumps(line), flush=True)


def _step(workers: dict[str, Any], batch: Any, step: int, stages: Stages, arguments: argparse.Namespace) -> None:
    """The passes of one PPO step in the trainer's order, with its advantages and losses."""
    import torch
    from verl.workers.utils.padding import response_from_nested, response_to_nested

    from atlas_rl.objective.advantages import gae, whiten
    from atlas_rl.reporting.memory import Stage

    mask = batch["response_mask"]
    actor, critic = workers.get("actor"), workers.get("critic")
    zeros = torch.nested.as_nested_tensor([torch.zeros(len(row)) for row in mask.unbind()], layout=torch.jagged)
    for name in ("old_log_probs", "values", "advantages", "returns"):
        batch[name] = zeros
    if actor is not None:
        with stages.measured(Stage.OLD_LOG_PROB, step):
            found = actor.compute_log_prob(_settings(batch, arguments, entropy=True))
            batch["old_log_probs"] = response_from_nested(found["log_probs"], mask)
    if arguments.reference and actor is not None:
        with stages.measured(Stage.REF_LOG_PROB, step):
            found = actor.compute_log_prob(_settings(batch, arguments, no_lora_adapter=True))
            batch["ref_log_prob"] = response_from_nested(found["log_probs"], mask)
    if critic is not None:
        with stages.measured(Stage.VALUES, step):
            found = critic.infer_batch(_settings(batch, arguments))
            batch["values"] = response_from_nested(found["values"], mask)
    with stages.measured(Stage.ADVANTAGE, step):
        sampled_BT = mask.to_padded_tensor(0).bool()
        rewards_BT = torch.zeros(sampled_BT.shape)
        generator = torch.Generator().manual_seed(step)
        last_B = sampled_BT.shape[1] - 1 - sampled_BT.flip(1).int().argmax(1)
        rewards_BT[torch.arange(len(rewards_BT)), last_B] = torch.randn(len(rewards_BT), generator=generator)
        values_BT = batch["values"].to_padded_tensor(0.0).float()
        raw_BT, returns_BT = gae(rewards_BT, values_BT, sampled_BT, 1.0, 0.95)
        batch["advantages"] = response_to_nested(whiten(raw_BT, sampled_BT), mask)
        batch["returns"] = response_to_nested(returns_BT, mask)
    if critic is not None:
        with stages.measured(Stage.UPDATE_CRITIC, step):
            critic.train_mini_batch(_settings(batch, arguments, update=True))
    if actor is not None:
        with stages.measured(Stage.UPDATE_ACTOR, step):
            actor.update_actor(_settings(batch, arguments, update=True))
    if arguments.save:
        with stages.measured(Stage.SAVE, step):
            _save(workers, step, arguments)


def _save(workers: dict[str, Any], step: int, arguments: argparse.Namespace) -> None:
    """Save what trains as a run does, and wait for the disk, which a run does not."""
    from atlas_rl.checkpoint.committer import StepCommitter
    from atlas_rl.checkpoint.identity import ModelIdentity, RunIdentity
    from atlas_rl.checkpoint.state import RunState

    models = {name: ModelIdentity(world_size=1, base_fingerprint="random", lora=None) for name in workers}
    identity = RunIdentity(run_id="update_memory", models=models)
    with StepCommitter(
        arguments.out.absolute() / "checkpoints", identity=identity, code_version="bench", anchor_every=None
    ) as committer:
        partial = committer.begin(step)
        for name, worker in workers.items():
            cost = worker.save_step(str(partial))
            line = {"saved": name, "bytes": cost.num_bytes, "blocked_seconds": round(cost.copy_seconds, 3)}
            print(json.dumps(line), flush=True)
        state = RunState(
            global_step=step, epoch=0, actor_updates=step, critic_updates=step, kl_coefficient=None, dataloader=None,
            rng=None,
        )  # fmt: skip
        committer.commit(partial, state)
        committer.wait()


def _settings(
    batch: Any, arguments: argparse.Namespace, *, update: bool = False, entropy: bool = False,
    no_lora_adapter: bool = False,
) -> Any:  # fmt: skip
    """The batch with what the trainer says of a pass."""
    from verl.utils import tensordict_utils as tu

    from atlas_rl.training.chosen_tokens import POLICY_KEY

    batch = batch.clone()
    tu.assign_non_tensor(batch, temperature=1.0, calculate_entropy=entropy, compute_loss=update)
    if update:
        size = len(batch)
        tu.assign_non_tensor(
            batch, global_batch_size=size, mini_batch_size=size, epochs=1, seed=0, dataloader_kwargs={"shuffle": False}
        )
    if no_lora_adapter:
        tu.assign_non_tensor(batch, no_lora_adapter=True)
    policy = {"logprobs": arguments.logprobs, "chunk_tokens": arguments.chunk_tokens}
    tu.assign_non_tensor(batch, **{POLICY_KEY: policy})
    return batch


def _batch(tokenizer: Any, step: int, arguments: argparse.Namespace) -> Any:
    """Rows of exactly ``--tokens`` tokens, a third of them the prompt."""
    from atlas_rl.training.memory_rows import RowMaker
    from atlas_rl.training.standalone import ActorRow, actor_batch

    prompt_tokens = arguments.tokens // 3
    maker = RowMaker(tokenizer, benchmark_spec=arguments.benchmark, max_turns=9, is_constrained=True)
    rows = []
    for place in range(arguments.rows):
        row = maker.row(f"{step} {place}", prompt_tokens, arguments.tokens - prompt_tokens)
        rows.append(
            ActorRow(
                uid=f"row{place}", session_id=0, prompt_ids=row.prompt_ids, response_ids=row.response_ids,
                response_mask=row.response_mask, benchmark_spec=arguments.benchmark, generations=row.generations,
                step=step,
            )
        )  # fmt: skip
    return actor_batch(rows)


def _engine(worker: Any) -> Any:
    return worker.actor.engine if hasattr(worker, "actor") else worker.engine


def _head(config: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    from omegaconf import OmegaConf

    passes = ["old_log_prob", *(["ref_log_prob"] if arguments.reference else []), "update_actor"]
    passes = passes if "actor" in arguments.models else []
    passes += ["values", "update_critic"] if "critic" in arguments.models else []
    passes += ["advantage", *(["save"] if arguments.save else [])]
    return {
        "run_id": "update_memory",
        "world_size": 1,
        "budgets": {name: OmegaConf.select(config, name) for name in BUDGETS}
        | {"atlas.policy.head_chunk_tokens": arguments.chunk_tokens},
        "num_steps": arguments.steps,
        "num_rows": arguments.rows,
        "prompt_tokens": arguments.tokens // 3,
        "response_tokens": arguments.tokens - arguments.tokens // 3,
        "expected": ["models", *(f"{name}/{step}" for step in range(1, arguments.steps + 1) for name in passes)],
    }


def _keys(model: Path, arguments: argparse.Namespace) -> list[str]:
    """The command line of a run with this model, rows and budget."""
    offload = str(arguments.offload == "verl").lower()
    is_gpu = arguments.hardware == "gpu"
    keys = [
        "experiment=gsm8k_smoke" if is_gpu else "experiment=urn_demo", f"hardware={arguments.hardware}",
        f"actor_rollout_ref.model.path={model}", "data.train_files=none", "data.val_files=none", "atlas.run.id=bench",
        f"actor_rollout_ref.model.lora_rank={arguments.rank}",
        f"actor_rollout_ref.model.lora_alpha={2 * arguments.rank}",
        "actor_rollout_ref.actor.optim.total_training_steps=1000", "critic.optim.total_training_steps=1000",
        "++critic.model.override_config.value_head_std=0.01",
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={arguments.budget or arguments.tokens}",
        f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={arguments.budget or arguments.tokens}",
        f"critic.ppo_max_token_len_per_gpu={arguments.budget or arguments.tokens}",
        f"actor_rollout_ref.actor.fsdp_config.param_offload={offload}", f"critic.fsdp.param_offload={offload}",
        f"actor_rollout_ref.actor.fsdp_config.optimizer_offload={offload}",
        f"critic.fsdp.optimizer_offload={offload}",
    ]  # fmt: skip
    if is_gpu:
        keys += [
            f"actor_rollout_ref.model.override_config.attn_implementation={arguments.attention}",
            f"critic.model.override_config.attn_implementation={arguments.attention}",
            f"actor_rollout_ref.actor.fsdp_config.use_torch_compile={str(arguments.compile).lower()}",
            f"critic.fsdp.use_torch_compile={str(arguments.compile).lower()}",
        ]  # fmt: skip
    return [*keys, *arguments.override]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="a Hugging Face config.json; default: a Qwen3 of the sizes below")
    parser.add_argument("--tokenizer", type=Path, help="folder with Qwen3's tokenizer files; default: made up")
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=5120)
    parser.add_argument("--intermediate", type=int, help="default: three times --hidden")
    parser.add_argument("--heads", type=int, help="default: --hidden / 128")
    parser.add_argument("--kv-heads", type=int, help="default: a quarter of the heads")
    parser.add_argument("--hardware", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--attention", default="sdpa", help="attn_implementation on a card")
    parser.add_argument("--models", nargs="+", choices=("actor", "critic"), default=["actor", "critic"])
    parser.add_argument("--tokens", type=int, default=24576, help="of each row")
    parser.add_argument("--rows", type=int, default=2, help="of each step, one update for all of them")
    parser.add_argument("--budget", type=int, help="tokens of a micro-batch; default: one row")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--offload", choices=("none", "verl", "exact"), default="exact")
    parser.add_argument("--reference", action="store_true", help="a reference pass as well")
    parser.add_argument("--save", action="store_true", help="save what trains after each step")
    parser.add_argument("--compile", action="store_true", help="compile the head's chunks, as runs do by default")
    parser.add_argument("--logprobs", choices=("full_vocab", "grammar"), default="full_vocab")
    parser.add_argument("--chunk-tokens", type=int, default=1024)
    parser.add_argument("--benchmark", default="gsm8k")
    parser.add_argument("--out", type=Path, default=Path("update_memory"))
    parser.add_argument("override", nargs="*", help="further configuration keys")
    return parser.parse_args()


if __name__ == "__main__":
    main()
