"""What ``atlas-rl grammar check`` finds out about a benchmark on a tokenizer."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from atlas_rl.cli.model_folder import read_tokenizer_folder
from atlas_rl.cli.prompts import Protocol, load_protocol
from atlas_rl.errors import ConfigError
from atlas_rl.grammar.case_runs import CaseRunner, Surface
from atlas_rl.grammar.cases import OWN, CaseFile, SurfaceSpec
from atlas_rl.grammar.compiled import compile_states, verify_states
from atlas_rl.grammar.tags import BenchmarkGrammar, StateGrammar
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import Benchmark, Tool


@dataclass(frozen=True, slots=True)
class _Compiled:
    name: str
    grammar: StateGrammar
    milliseconds: float
    """Wall time of compiling it behind those before it, as an engine does: what two grammars share compiles once."""


class GrammarReport:
    """One benchmark on one tokenizer."""

    def __init__(self, folder: Path, benchmark: Benchmark, *, max_text_tokens: int | None = None) -> None:
        """Load the tokenizer and write the grammars.

        Raises:
            ConfigError: no tokenizer there.
            GrammarError: the tokenizer cannot carry the protocol, or a schema cannot be enforced.
        """
        read_tokenizer_folder("--model", str(folder))
        self.folder = folder
        self.benchmark = benchmark
        self.protocol: Protocol = load_protocol(OmegaConf.create({}), folder, enable_thinking=False)
        self.vocab_size = _vocab_size(folder, self.protocol.tokenizer)
        self.grammar = BenchmarkGrammar.from_benchmark(benchmark, self.protocol.tokens, max_text_tokens=max_text_tokens)

    def states(self) -> Iterator[str]:
        """A line a state with its hash and longest call, and one a rung."""
        yield f"{self.benchmark.name} on {self.folder}: {self.vocab_size} rows, {len(self.protocol.tokenizer)} tokens"
        for one in self._compile():
            grammar = one.grammar
            text = "no text" if grammar.max_text_tokens == 0 else f"text up to {grammar.max_text_tokens} tokens"
            text = "text without a bound" if grammar.max_text_tokens is None else text
            if "/" in one.name:
                most = grammar.max_generation_tokens
                yield f"  {one.name}: {grammar.sha256[:12]}, up to {most} tokens, compiled in {one.milliseconds:.0f} ms"
                continue
            shortest = grammar.min_call_tokens(self.protocol.template.encode_text)
            tools = " and ".join(grammar.allowed_tools)
            yield (
                f"state {one.name}: {grammar.sha256}, {tools}, {text}, call of {shortest} to "
                f"{grammar.max_call_tokens} tokens, compiled in {one.milliseconds:.0f} ms"
            )

    def _compile(self) -> Iterator[_Compiled]:
        self._compiled({})  # the tokenizer is read once, which is no part of any state
        for name, grammar in self.grammar.by_name(rungs=True).items():
            started = time.perf_counter()
            self._compiled({grammar.state: grammar})
            yield _Compiled(name, grammar, 1000 * (time.perf_counter() - started))

    def _compiled(self, states: Mapping[EpisodeState, StateGrammar]) -> Any:
        tokens, tokenizer = self.protocol.tokens, self.protocol.tokenizer
        return compile_states(states, tokens, tokenizer, vocab_size=self.vocab_size)

    def outcomes(self, file: CaseFile) -> Iterator[tuple[str, str]]:
        """What was looked at and what is wrong with it; empty: nothing.

        Raises:
            ConfigError: a case cannot be written on this tokenizer.
            GrammarError: the benchmark does not hold the check that every run starts with.
        """
        own = self._compiled(self.grammar)
        verify_states(self.grammar, own, self.protocol.tokens, self.protocol.template)
        surfaces = {OWN: self._surface(self.benchmark, self.grammar)}
        for name, spec in file.surfaces.items():
            benchmark = _benchmark(name, spec)
            surfaces[name] = self._surface(benchmark, BenchmarkGrammar.from_benchmark(benchmark, self.protocol.tokens))
        runner = CaseRunner(self.protocol.tokenizer, self.protocol.template, own)
        for case in file.cases:
            for name in case.where:
                yield from ((f"{name}: {where}", fault) for where, fault in runner.run(case, surfaces[name]))
        for refused in file.refused_schemas:
            yield f"schema {json.dumps(refused.answer)}", runner.refuse(refused)

    def _surface(self, benchmark: Benchmark, states: BenchmarkGrammar) -> Surface:
        names = {"explore": benchmark.explore.name, "submit": benchmark.submit.name}
        return Surface(names=names, states=states, compiled=self._compiled(states))


def _vocab_size(folder: Path, tokenizer: Any) -> int:
    """Rows of the model's head; of a tokenizer without a model, its tokens and eight rows that no token has."""
    config = folder / "config.json"
    if not config.is_file():
        return int(max(tokenizer.get_vocab().values())) + 1 + 8
    content = json.loads(config.read_bytes())
    size = content.get("vocab_size", content.get("text_config", {}).get("vocab_size"))
    if type(size) is not int:
        raise ConfigError(f"{config}: vocab_size must be a whole number, got {size!r}; add it")
    return size


def _benchmark(name: str, spec: SurfaceSpec) -> Benchmark:
    def tool(tool_name: str, **properties: Any) -> Tool:
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        return Tool(name=tool_name, description="", parameters={**schema, "additionalProperties": False})

    return Benchmark(
        name=name,
        system_prompt="",
        explore=tool("explore"),
        submit=tool("submit", answer=spec.answer),
        submission_field="answer",
        observation="",
        timed_out_observation="",
        max_text_tokens=spec.text,
        grader="exact",
    )


def write_tags(out: Path, checked: GrammarReport) -> Path:
    """Write each state's tag as the engine takes it, and index.json with the hashes of all rungs.

    Returns:
        The folder: OUT/BENCHMARK/TOKENIZER, named by the folder and the digest of its tokenizer.
    """
    digest = hashlib.sha256((checked.folder / "tokenizer.json").read_bytes()).hexdigest()
    folder = out / checked.benchmark.name / f"{checked.folder.resolve().name}-{digest[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    for state, grammar in checked.grammar.items():
        (folder / f"{state}.json").write_text(grammar.structural_tag, encoding="utf-8")
    tokens = checked.protocol.tokens
    index = {
        "tokenizer_sha256": digest,
        "call_begin": tokens.call_begin_id,
        "call_end": tokens.call_end_id,
        "end_of_turn": tokens.end_of_turn_id,
        "control": dict(zip(tokens.control_texts, tokens.control_ids, strict=True)),
        "max_call_tokens": {str(state): grammar.max_call_tokens for state, grammar in checked.grammar.items()},
        "sha256": {name: grammar.sha256 for name, grammar in checked.grammar.by_name(rungs=True).items()},
    }
    (folder / "index.json").write_text(json.dumps(index, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder
