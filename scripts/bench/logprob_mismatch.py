"""How far the trainer's log-probabilities are from the engine's, with and without the grammar, on the same tokens.

    python scripts/bench/logprob_mismatch.py --tokenizer DIR --hardware gpu --out mismatch.json

The engine samples under the real structural tags of a benchmark's states; the actor then scores the same tokens over
the whole vocabulary and over the legal sets. One line a mode, split into free and forced tokens.
"""

import argparse
import gc
import json
import os
import random
import time
from pathlib import Path
from typing import Any

from bench_model import set_cpu_environment


def main() -> None:
    """Sample, score twice, print and write."""
    arguments = _arguments()
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "atlas_rl.training.plugin"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if arguments.hardware == "cpu":
        set_cpu_environment()
    import torch
    from random_model import write_random_model

    is_gpu = arguments.hardware == "gpu"
    dtype = torch.bfloat16 if arguments.dtype == "bfloat16" else torch.float32
    write_random_model(
        arguments.model, arguments.tokenizer, num_layers=arguments.layers, hidden_size=arguments.hidden,
        device="cuda" if is_gpu else "cpu", dtype=dtype, scales_residual=arguments.scale_residual,
    )  # fmt: skip
    started = time.perf_counter()
    rows, engine_logprobs = _sample(arguments)
    print(f"{len(rows)} generations sampled after {time.perf_counter() - started:.0f} s")
    metrics, trainer_logprobs = _compare(rows, engine_logprobs, arguments)
    if arguments.float32_rows:
        exact = _float32_logprobs(rows[: arguments.float32_rows], arguments)
        for name, found in (("engine", engine_logprobs), ("trainer", trainer_logprobs)):
            metrics[f"{name} against float32"] = _distance(found, exact)
    for mode, found in metrics.items():
        print(mode, {name: float(f"{value:.3g}") for name, value in found.items()})
    if arguments.out:
        arguments.out.write_text(json.dumps(metrics, indent=2) + "\n")


def _sample(arguments: argparse.Namespace) -> tuple[list[Any], list[list[float]]]:
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    from atlas_rl.grammar.protocol import ProtocolTokens
    from atlas_rl.grammar.tags import BenchmarkGrammar
    from atlas_rl.records.vocabulary import EpisodeState
    from atlas_rl.tasks.benchmark import load_benchmark
    from atlas_rl.training.standalone import ActorRow

    is_gpu = arguments.hardware == "gpu"
    engine = LLM(
        model=str(arguments.model), dtype=arguments.dtype, enforce_eager=True, seed=0,
        max_model_len=4096, gpu_memory_utilization=arguments.gpu_memory_utilization,
        structured_outputs_config={"backend": "xgrammar"}, logprobs_mode="processed_logprobs",
        **({} if is_gpu else {"distributed_executor_backend": "uni", "enable_chunked_prefill": False}),
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(str(arguments.model))
    tokens = ProtocolTokens.from_tokenizer(tokenizer)
    grammar = BenchmarkGrammar.from_benchmark(load_benchmark(arguments.benchmark), tokens)
    rng = random.Random(0)
    states = [list(EpisodeState)[place % 3] for place in range(arguments.generations)]
    if arguments.rows:
        prompts = _real_prompts(tokenizer, tokens, arguments)[: len(states)]
        states = states[: len(prompts)]
    else:
        ordinary = sorted(set(range(len(tokenizer))) - set(tokens.control_ids))
        prompts = [[rng.choice(ordinary) for _ in range(arguments.prompt_tokens)] for _ in states]
    parameters = [
        SamplingParams(
            max_tokens=arguments.max_tokens, temperature=1.0, logprobs=0, seed=place, detokenize=False,
            structured_outputs=StructuredOutputsParams(structural_tag=grammar[state].structural_tag),
        )
        for place, state in enumerate(states)
    ]  # fmt: skip
    outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], parameters)
    rows, logprobs = [], []
    for place, (prompt, state, output) in enumerate(zip(prompts, states, outputs, strict=True)):
        ids = list(output.outputs[0].token_ids)
        rows.append(
            ActorRow(
                uid=f"row{place}", session_id=0, prompt_ids=prompt, response_ids=ids, response_mask=[1] * len(ids),
                benchmark_spec=arguments.benchmark, generations=[(0, len(ids), grammar[state].sha256)],
            )
        )  # fmt: skip
        logprobs.append([step[token].logprob for step, token in zip(output.outputs[0].logprobs, ids, strict=True)])
    del engine
    gc.collect()
    return rows, logprobs


def _real_prompts(tokenizer: Any, tokens: Any, arguments: argparse.Namespace) -> list[list[int]]:
    from atlas_rl.data.parquet import read_rows
    from atlas_rl.grammar.template import ChatTemplate
    from atlas_rl.tasks.benchmark import load_benchmark
    from atlas_rl.tasks.sequential import messages

    template, benchmark = ChatTemplate(tokenizer, tokens), load_benchmark(arguments.benchmark)
    tools = [benchmark.explore.openai, benchmark.submit.openai]
    return [template.prompt_ids(messages(benchmark, row), tools) for row in read_rows(arguments.rows)]


def _compare(
    rows: list[Any], engine_logprobs: list[list[float]], arguments: argparse.Namespace
) -> tuple[dict[str, dict[str, float]], list[list[float]]]:
    import torch
    from transformers import AutoTokenizer
    from verl.utils import tensordict_utils as tu

    from atlas_rl.cli.composition import compose
    from atlas_rl.grammar.replay import FORCED
    from atlas_rl.objective.metrics import mismatch_metrics
    from atlas_rl.training.chosen_tokens import POLICY_KEY
    from atlas_rl.training.legal_sets import ReplayedSets
    from atlas_rl.training.standalone import actor_batch, standalone_actor

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    longest = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    [config] = compose(
        [
            "experiment=gsm8k_smoke" if arguments.dtype == "bfloat16" else "experiment=urn_demo",
            f"hardware={arguments.hardware}", f"actor_rollout_ref.model.path={arguments.model}",
            "data.train_files=none", "data.val_files=none", "atlas.run.id=bench",
            "actor_rollout_ref.actor.optim.total_training_steps=1000",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={longest}",
            f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={longest}",
            *arguments.override,
        ]
    )  # fmt: skip
    batch = actor_batch(rows)
    tokenizer = AutoTokenizer.from_pretrained(str(arguments.model))
    engine_BT = torch.nested.to_padded_tensor(_nested(engine_logprobs), 0.0)
    sampled_BT = torch.nested.to_padded_tensor(_nested([row.response_mask for row in rows]), 0).bool()
    metrics = {}
    with standalone_actor(config) as actor:
        vocab_size = actor.actor.engine.module.get_output_embeddings().weight.shape[0]
        places = ReplayedSets(tokenizer, vocab_size).places(batch)
        forced_BT = torch.nested.to_padded_tensor(_nested([(found == FORCED).tolist() for found in places]), 0).bool()
        for mode in ("full_vocab", "grammar"):
            asked = batch.clone()
            tu.assign_non_tensor(asked, temperature=1.0, calculate_entropy=True, compute_loss=False)
            tu.assign_non_tensor(asked, **{POLICY_KEY: {"logprobs": mode, "chunk_tokens": 1024}})
            output = actor.compute_log_prob(asked)
            trainer = [
                values[len(row.prompt_ids) - 1 : -1]
                for values, row in zip(output["log_probs"].unbind(), rows, strict=True)
            ]
            trainer_BT = torch.nested.to_padded_tensor(torch.nested.as_nested_tensor(trainer), 0.0)
            metrics[mode] = mismatch_metrics(engine_BT, trainer_BT, sampled_BT, forced_BT)
            entropy = torch.cat([values for values in output["entropy"].unbind()])
            metrics[mode]["entropy_of_sampled_tokens"] = float(entropy.sum() / sampled_BT.sum())
            everything = (trainer_BT - engine_BT)[sampled_BT].abs()
            metrics[mode]["all/logprob_difference_mean"] = float(everything.mean())
            metrics[mode]["all/logprob_difference_max"] = float(everything.max())
    return metrics, [values.tolist() for values in trainer]


def _float32_logprobs(rows: list[Any], arguments: argparse.Namespace) -> list[list[float]]:
    """[T] a row, over the legal sets, by plain transformers in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from atlas_rl.grammar.replay import FORCED
    from atlas_rl.objective.token_logprobs import LegalSets, token_logprobs
    from atlas_rl.training.legal_sets import ReplayedSets
    from atlas_rl.training.standalone import actor_batch

    device = torch.device("cuda" if arguments.hardware == "gpu" else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    model: Any = AutoModelForCausalLM.from_pretrained(str(arguments.model), dtype=torch.float32).to(device)
    weight_VH = model.get_output_embeddings().weight.detach()
    sets = ReplayedSets(AutoTokenizer.from_pretrained(str(arguments.model)), weight_VH.shape[0])
    found = []
    for row, places in zip(rows, sets.places(actor_batch(rows)), strict=True):
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]], device=device)
        with torch.no_grad():
            hidden_TH = model.model(input_ids=ids).last_hidden_state[0, len(row.prompt_ids) - 1 : -1]
        which = torch.from_numpy(places).to(device).long()
        free = which != FORCED
        scored = token_logprobs(
            hidden_TH[free], weight_VH, torch.tensor(row.response_ids, device=device)[free],
            torch.ones(int(free.sum()), device=device), LegalSets(sets.words_DW(device), which[free]), chunk_tokens=256,
        )  # fmt: skip
        logprobs_T = torch.zeros(len(row.response_ids), device=device)
        logprobs_T[free] = scored.logprobs_N
        found.append(logprobs_T.tolist())
    return found


def _distance(ours: list[list[float]], exact: list[list[float]]) -> dict[str, float]:
    distances = [abs(a - b) for row, other in zip(ours, exact, strict=False) for a, b in zip(row, other, strict=True)]
    return {"logprob_difference_mean": sum(distances) / len(distances), "logprob_difference_max": max(distances)}


def _nested(rows: list[Any]) -> Any:
    import torch

    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=torch.float32) for row in rows])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="folder with Qwen3's tokenizer files; default: made up")
    parser.add_argument("--model", type=Path, default=Path("/dev/shm/atlas_bench_model"), help="written if absent")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--hardware", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="default: bfloat16 on a card, else float32")
    parser.add_argument("--benchmark", default="gsm8k")
    parser.add_argument("--rows", type=Path, help="parquet of the benchmark, for real prompts in place of random ids")
    parser.add_argument("--generations", type=int, default=96)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.4)
    parser.add_argument("--float32-rows", type=int, default=0)
    parser.add_argument("--scale-residual", action="store_true", help="see random_model.write_random_model")
    parser.add_argument("--out", type=Path)
    parser.add_argument("override", nargs="*", help="further configuration keys")
    arguments = parser.parse_args()
    arguments.dtype = arguments.dtype or ("bfloat16" if arguments.hardware == "gpu" else "float32")
    return arguments


if __name__ == "__main__":
    main()
