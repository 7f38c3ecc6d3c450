"""Seconds and memory of an actor's passes by how its log-probabilities are computed, in one run.

    python scripts/bench/actor_update.py --tokenizer DIR --hardware gpu --out bench.json

Prints one line a mode: verl's own head on logits, the chunked head over the whole vocabulary, and the chunked head
over the legal sets, which are replayed in the log-prob pass and kept for the update. Needs Ray neither a dataset.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from bench_model import set_cpu_environment

MODES: dict[str, dict[str, Any] | None] = {
    "verl": None,
    "full_vocab": {"logprobs": "full_vocab"},
    "grammar": {"logprobs": "grammar"},
}


def main() -> None:
    """Build the actor, time each mode, print and write."""
    arguments = _arguments()
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "atlas_rl.training.plugin"
    if arguments.hardware == "cpu":
        set_cpu_environment()
    import torch
    from random_model import write_random_model
    from transformers import AutoTokenizer

    from atlas_rl.cli.composition import compose
    from atlas_rl.training.standalone import standalone_actor

    dtype = torch.bfloat16 if arguments.hardware == "gpu" else torch.float32
    device = "cuda" if arguments.hardware == "gpu" else "cpu"
    write_random_model(
        arguments.model, arguments.tokenizer, num_layers=arguments.layers, hidden_size=arguments.hidden,
        device=device, dtype=dtype,
    )  # fmt: skip
    length = arguments.prompt_tokens + arguments.response_tokens
    [config] = compose(
        [
            "experiment=gsm8k_smoke" if arguments.hardware == "gpu" else "experiment=urn_demo",
            f"hardware={arguments.hardware}", f"actor_rollout_ref.model.path={arguments.model}",
            "data.train_files=none", "data.val_files=none", "atlas.run.id=bench",
            f"actor_rollout_ref.model.lora_rank={arguments.rank}", "actor_rollout_ref.model.lora_alpha=128",
            "actor_rollout_ref.actor.optim.total_training_steps=1000",
            f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={length}",
            f"actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu={length}",
            *arguments.override,
        ]
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(str(arguments.model))
    with standalone_actor(config) as actor:
        results = _measure(actor, tokenizer, arguments)
    print(f"{'mode':<12}{'log-prob s':>12}{'update s':>12}{'ratio':>8}{'peak GiB':>10}")
    for mode, result in results.items():
        ratio = result["update_seconds"] / results["full_vocab"]["update_seconds"]
        print(
            f"{mode:<12}{result['logprob_seconds']:>12.3f}{result['update_seconds']:>12.3f}{ratio:>8.3f}"
            f"{result['peak_gib']:>10.1f}"
        )
    grammar, plain = results["grammar"], results["full_vocab"]
    update = grammar["update_seconds"] / plain["update_seconds"]
    print(
        f"grammar over full_vocab: update {update:.3f}, log-prob and update {_both(grammar) / _both(plain):.3f}; "
        f"replay of a row alone {grammar['replay_seconds']:.3f} s"
    )
    if arguments.out:
        arguments.out.write_text(json.dumps({"arguments": _plain(arguments), "results": results}, indent=2) + "\n")


def _both(result: dict[str, float]) -> float:
    return result["logprob_seconds"] + result["update_seconds"]


def _measure(actor: Any, tokenizer: Any, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    import torch
    from legal_rows import legal_row

    from atlas_rl.training.legal_sets import ReplayedSets
    from atlas_rl.training.standalone import actor_batch

    vocab_size = actor.actor.engine.module.get_output_embeddings().weight.shape[0]
    rows = [
        legal_row(
            tokenizer, vocab_size, spec=arguments.benchmark, prompt_tokens=arguments.prompt_tokens,
            response_tokens=arguments.response_tokens, text_tokens=arguments.text_tokens, seed=seed,
        )
        for seed in range(arguments.rows)
    ]  # fmt: skip
    print(f"{len(rows)} rows, {sum(rows[0].response_mask)} of {len(rows[0].response_mask)} response tokens sampled")
    ones = [torch.ones(len(row.response_ids)) for row in rows]
    zeros = [torch.zeros(len(row.response_ids)) for row in rows]
    times: dict[str, dict[str, list[float]]] = {mode: {"logprob": [], "update": []} for mode in MODES}
    peaks = dict.fromkeys(MODES, 0.0)
    for repeat in range(arguments.repeats + 1):
        for mode, policy in MODES.items():
            # Another step each time, so that the log-prob pass replays as it does in a run.
            stepped = [type(row)(**{**_fields(row), "step": repeat}) for row in rows]
            batch = actor_batch(stepped, {"old_log_probs": zeros, "advantages": ones})
            _reset_peak()
            logprob = _timed(lambda: actor.compute_log_prob(_settings(batch, policy, arguments)))  # noqa: B023
            update = _timed(lambda: actor.update_actor(_settings(batch, policy, arguments, update=True)))  # noqa: B023
            peaks[mode] = max(peaks[mode], _peak_gib())
            if repeat:  # the first is a warm-up
                times[mode]["logprob"].append(logprob)
                times[mode]["update"].append(update)
    results = {
        mode: {
            "logprob_seconds": statistics.median(found["logprob"]),
            "update_seconds": statistics.median(found["update"]),
            "peak_gib": peaks[mode],
        }
        for mode, found in times.items()
    }
    replays = ReplayedSets(tokenizer, vocab_size)
    one = actor_batch(rows[:1])
    replays.places(actor_batch([type(rows[0])(**{**_fields(rows[0]), "step": 99})]))  # compiles
    results["grammar"]["replay_seconds"] = _timed(lambda: replays.places(one))
    return results


def _settings(batch: Any, policy: dict[str, Any] | None, arguments: argparse.Namespace, *, update: bool = False) -> Any:
    from verl.utils import tensordict_utils as tu

    from atlas_rl.training.chosen_tokens import POLICY_KEY

    batch = batch.clone()
    tu.assign_non_tensor(batch, temperature=1.0, calculate_entropy=not update, compute_loss=update)
    if update:
        size = len(batch)
        tu.assign_non_tensor(
            batch, global_batch_size=size, mini_batch_size=size, epochs=1, seed=0, dataloader_kwargs={"shuffle": False}
        )
    if policy is not None:
        tu.assign_non_tensor(batch, **{POLICY_KEY: {**policy, "chunk_tokens": arguments.chunk_tokens}})
    return batch


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in type(row).__slots__}


def _timed(run: Any) -> float:
    _synchronize()
    started = time.perf_counter()
    run()
    _synchronize()
    return time.perf_counter() - started


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _reset_peak() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_gib() -> float:
    import psutil
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return psutil.Process().memory_info().rss / 2**30


def _plain(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="folder with Qwen3's tokenizer files; default: made up")
    parser.add_argument("--model", type=Path, default=Path("/dev/shm/atlas_bench_model"), help="written if absent")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--hardware", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--benchmark", default="gsm8k")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=8192)
    parser.add_argument("--response-tokens", type=int, default=16384)
    parser.add_argument("--text-tokens", type=int, default=100)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--chunk-tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("override", nargs="*", help="further configuration keys")
    return parser.parse_args()


if __name__ == "__main__":
    main()
