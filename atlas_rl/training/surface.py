"""What all episodes of one benchmark share in a process: tokens, template, grammars, grader. Built once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas_rl.grading.grader import Grader, grader_for
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.replay import GrammarBook
from atlas_rl.grammar.stop_ids import engine_stop_ids
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.tasks.benchmark import Benchmark, load_benchmark
from atlas_rl.training.config import RuntimeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One benchmark on one tokenizer."""

    benchmark: Benchmark
    tokens: ProtocolTokens
    template: ChatTemplate
    grammar: BenchmarkGrammar
    book: GrammarBook
    grader: Grader
    vocab_size: int


_surfaces: dict[str, Surface] = {}


def surface(benchmark_spec: str, tokenizer: Any, model_folder: Path, config: RuntimeConfig) -> Surface:
    """The surface of a benchmark in this process; a process has one tokenizer, one model and one configuration.

    Args:
        benchmark_spec: As rows name it.
        tokenizer: The run's.
        model_folder: The actor's, which says where the engine stops.
        config: ``atlas.runtime``.

    Raises:
        ConfigError: no such benchmark, or generation_config.json cannot be read.
        GrammarError: the tokenizer lacks the protocol's tokens, or a schema cannot be constrained.
    """
    if benchmark_spec not in _surfaces:
        benchmark = load_benchmark(benchmark_spec)
        tokens = ProtocolTokens.from_tokenizer(tokenizer, extra_stop_ids=engine_stop_ids(model_folder))
        grammar = BenchmarkGrammar.from_benchmark(benchmark, tokens, max_text_tokens=config.max_text_tokens)
        book = GrammarBook(tokens, tokenizer, vocab_size=len(tokenizer))
        book.add(list(grammar.by_name(rungs=config.reserve_call).values()))
        _surfaces[benchmark_spec] = Surface(
            benchmark=benchmark,
            tokens=tokens,
            template=ChatTemplate(tokenizer, tokens, template_kwargs={"enable_thinking": config.enable_thinking}),
            grammar=grammar,
            book=book,
            grader=grader_for(benchmark.grader, time_limit_seconds=config.grader_timeout_seconds),
            vocab_size=len(tokenizer),
        )
    return _surfaces[benchmark_spec]
