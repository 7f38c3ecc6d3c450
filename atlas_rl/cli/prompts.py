"""The run's tokenizer against its rows: protocol tokens, the length of every prompt, the shortest calls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import track

from atlas_rl.cli.dataset_files import DatasetFile
from atlas_rl.cli.verl_keys import MODEL, count
from atlas_rl.errors import ConfigError, DataError, GrammarError, blame
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.tasks.benchmark import Benchmark

_BAR_FROM_ROWS = 2000


@dataclass(frozen=True, slots=True)
class Protocol:
    """A tokenizer with the tokens and the template of the protocol; built as every worker process will build it."""

    tokenizer: Any
    tokens: ProtocolTokens
    template: ChatTemplate


def load_protocol(config: Any, folder: Path, *, enable_thinking: bool) -> Protocol:
    """Load a tokenizer as verl does and check that it can carry the protocol.

    Raises:
        ConfigError: it cannot be loaded or has no chat template.
        GrammarError: it lacks a token of the protocol, or its template cannot keep content and control apart.
    """
    # Torch comes with it; the cheaper checks are done by now.
    from transformers import AutoTokenizer

    with blame(ConfigError, f"{folder}: its tokenizer cannot be loaded"):
        trusts = bool(OmegaConf.select(config, f"{MODEL}.trust_remote_code"))
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trusts)
    custom = OmegaConf.select(config, f"{MODEL}.custom_chat_template")
    if custom is not None:
        tokenizer.chat_template = custom
    if not tokenizer.chat_template:
        raise ConfigError(
            f"{folder}: its tokenizer has no chat template; add chat_template.jinja or set {MODEL}.custom_chat_template"
        )
    try:
        tokens = ProtocolTokens.from_tokenizer(tokenizer)
        template = ChatTemplate(tokenizer, tokens, template_kwargs={"enable_thinking": enable_thinking})
    except GrammarError as error:
        raise GrammarError(f"{folder}: {error}") from error
    return Protocol(tokenizer, tokens, template)


def check_vocabulary(protocol: Protocol, folder: Path, vocab_size: int) -> None:
    """Refuse a model that has no embedding for a token of its tokenizer.

    Raises:
        ConfigError: as said.
    """
    highest = max(protocol.tokenizer.get_vocab().values())
    if highest >= vocab_size:
        raise ConfigError(
            f"{folder / 'config.json'}: vocab_size={vocab_size}, but the tokenizer has token ids up to {highest}; "
            "resize the model's embeddings"
        )


def grammars(
    benchmarks: Mapping[str, Benchmark], protocol: Protocol, max_text_tokens: int | None = None
) -> dict[str, BenchmarkGrammar]:
    """The grammars of every benchmark, by benchmark_spec.

    Args:
        benchmarks: By benchmark_spec.
        protocol: The run's tokenizer.
        max_text_tokens: ``atlas.runtime.max_text_tokens``.

    Raises:
        GrammarError: a schema cannot be enforced; the message names the benchmark.
    """
    made = {}
    for spec, benchmark in benchmarks.items():
        try:
            made[spec] = BenchmarkGrammar.from_benchmark(benchmark, protocol.tokens, max_text_tokens=max_text_tokens)
        except GrammarError as error:
            raise GrammarError(f"benchmark_spec {spec!r}: {error}") from error
    return made


def check_response_budget(config: Any, grammar: Mapping[str, BenchmarkGrammar], protocol: Protocol) -> None:
    """Refuse a response budget that cannot hold one call in every state: such an episode could never submit.

    Raises:
        ConfigError: as said.
    """
    budget = count(config, "data.max_response_length")
    for spec, states in grammar.items():
        needed = states.min_call_tokens(protocol.template.encode_text)
        if needed > budget:
            raise ConfigError(
                f"data.max_response_length={budget} cannot hold one call of benchmark_spec {spec!r}, which takes "
                f"{needed} tokens at least; raise it"
            )


def check_prompts(
    config: Any, files: Sequence[DatasetFile], benchmarks: Mapping[str, Benchmark], protocol: Protocol
) -> int:
    """Render the prompt of every row and refuse the first that is over the limit; return the longest, in tokens.

    Raises:
        DataError: a prompt is over data.max_prompt_length; it is never truncated.
    """
    limit = count(config, "data.max_prompt_length")
    longest, long = 0, []
    tools = {spec: [one.explore.openai, one.submit.openai] for spec, one in benchmarks.items()}
    for path, index, spec, opening in _openings(files):
        try:
            length = len(protocol.template.prompt_ids(opening, tools[spec]))
        except GrammarError as error:
            raise DataError(f"{path} row {index}: {error}") from error
        longest = max(longest, length)
        if length > limit:
            long.append((path, index, length))
    if long:
        path, index, length = long[0]
        raise DataError(
            f"{path} row {index}: its prompt has {length} tokens, data.max_prompt_length={limit}; raise that to at "
            f"least {longest}, or drop the {len(long)} row(s) that are over it: no prompt is truncated"
        )
    return longest


def _openings(files: Sequence[DatasetFile]) -> Iterator[tuple[str, int, str, list[dict[str, str]]]]:
    rows = [(file.path, index, *opening) for file in files for index, opening in enumerate(file.openings)]
    return iter(
        track(
            rows,
            description="prompts",
            console=Console(stderr=True),
            transient=True,
            disable=len(rows) <= _BAR_FROM_ROWS,
        )
    )
