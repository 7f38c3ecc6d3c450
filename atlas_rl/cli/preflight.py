"""Everything about a run that can be checked without Ray, cheapest first; what it finds goes into the manifest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from atlas_rl.cli.batching_keys import check_batching_keys
from atlas_rl.cli.dataset_files import DatasetFile, benchmarks_of, check_batch_fits, read_datasets
from atlas_rl.cli.engine_keys import check_engine_keys, with_stop_ids
from atlas_rl.cli.memory_keys import check_memory_keys
from atlas_rl.cli.model_folder import ModelFolder, read_model_folder, read_tokenizer_folder
from atlas_rl.cli.policy_keys import check_policy_keys
from atlas_rl.cli.potential_cover import check_cover
from atlas_rl.cli.prompts import (
    Protocol,
    check_prompts,
    check_response_budget,
    check_vocabulary,
    grammars,
    load_protocol,
)
from atlas_rl.cli.verl_keys import MODEL, ROLLOUT, check_verl_keys, count, longest_row, shown
from atlas_rl.errors import ConfigError
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.rewards.potential_sources import PotentialSources, SourceKind
from atlas_rl.training.config import AtlasConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What the checks found out about a run that may start."""

    grammar_hashes: Mapping[str, str]
    """sha256 of the structural tag by ``BENCHMARK/STATE``, of tighter texts by ``BENCHMARK/STATE/text_N``."""
    protocol_token_ids: Mapping[str, Any]
    """Token ids by their part in the protocol."""
    files: Mapping[str, tuple[str, int]]
    """sha256 and number of rows of each dataset file, by path."""
    num_train_rows: int
    num_val_rows: int
    longest_prompt: int
    """Tokens."""
    model_fingerprints: Mapping[str, str]
    """By configuration key; ``model_folder.fingerprint`` says what is hashed."""
    potentials: PotentialSources = field(default_factory=PotentialSources)
    """The sources of potentials, each file with its sha256."""


def preflight(config: Any, atlas: AtlasConfig) -> Prepared:
    """Check keys, model folders, dataset files, tokenizer, prompts, budgets and grammars.

    Args:
        config: The resolved configuration.
        atlas: Its ``atlas`` node.

    Raises:
        AtlasError: the first thing that would stop or spoil the run, in one line.
    """
    check_verl_keys(config, is_constrained=atlas.runtime.grammar)
    check_batching_keys(config)
    check_memory_keys(config, atlas)
    check_engine_keys(config, is_constrained=atlas.runtime.grammar)
    potentials = _potentials(config, atlas)
    actor = read_model_folder(f"{MODEL}.path", config.actor_rollout_ref.model.path)
    critic = read_model_folder("critic.model.path", config.critic.model.path)
    check_policy_keys(config, atlas, actor)
    _check_adapter(config, f"{MODEL}.lora_adapter_path", actor)
    _check_adapter(config, "critic.model.lora_adapter_path", critic)
    _check_context(config, actor)
    train, val = read_datasets(config, "data.train_files"), read_datasets(config, "data.val_files")
    check_batch_fits(config, train)
    files = [("data.train_files", file.path) for file in train] + [("data.val_files", file.path) for file in val]
    check_cover(potentials.tables(), files)
    benchmarks = benchmarks_of([*train, *val])
    protocol = load_protocol(config, _tokenizer_folder(config), enable_thinking=atlas.runtime.enable_thinking)
    protocol = with_stop_ids(protocol, actor.path)
    for model in (actor, critic):
        check_vocabulary(protocol, model.path, model.vocab_size)
    grammar = grammars(benchmarks, protocol, atlas.runtime.max_text_tokens)
    check_response_budget(config, grammar, protocol)
    if atlas.runtime.reserve_call:
        _check_reserve(config, grammar)
    longest = check_prompts(config, [*train, *val], benchmarks, protocol)
    if atlas.runtime.grammar:
        _check_compiled(grammar, protocol, actor, rungs=atlas.runtime.reserve_call)
    return Prepared(
        grammar_hashes={
            f"{benchmarks[spec].name}/{name}": one.sha256
            for spec, states in grammar.items()
            for name, one in states.by_name(rungs=atlas.runtime.reserve_call).items()
        },
        protocol_token_ids=_token_ids(protocol),
        files={file.path: (file.sha256, len(file.openings)) for file in [*train, *val]},
        num_train_rows=_num_rows(train),
        num_val_rows=_num_rows(val),
        longest_prompt=longest,
        model_fingerprints={model.key: model.fingerprint for model in (actor, critic)},
        potentials=potentials,
    )


def _potentials(config: Any, atlas: AtlasConfig) -> PotentialSources:
    """Sources whose files are there and are tables; what they hold is compared with the dataset later."""
    gamma = OmegaConf.select(config, "algorithm.gamma")
    if atlas.reward.potentials and gamma != 1:
        raise ConfigError(
            f"algorithm.gamma={shown(gamma)} beside atlas.reward.potentials: under a discount these differences of "
            "potentials would change which policy is best; set algorithm.gamma=1, or leave the potentials out"
        )
    for name, source in atlas.potentials.parts:
        if source.kind is SourceKind.RECORDED:
            raise ConfigError(
                f"atlas.potentials.{name}.kind=recorded is read from stored trajectories, and new ones have no value "
                "yet; train with a table, or leave the part out"
            )
    atlas.potentials.potential(atlas.reward)
    return atlas.potentials.bound()


def _check_context(config: Any, model: ModelFolder) -> None:
    """The engine must have room for the longest row, or it would cut generations short in silence."""
    key, most = f"{ROLLOUT}.max_model_len", model.max_position_embeddings
    given = OmegaConf.select(config, key)
    if given is not None and (type(given) is not int or not 1 <= given <= most):
        raise ConfigError(
            f"{key}={shown(given)} must lie between 1 and max_position_embeddings={most} of {model.path}/config.json; "
            f"set {key}=null to use all of it"
        )
    if (given or most) < longest_row(config):
        limit = f"{key}={given}" if given else f"{model.path}/config.json: max_position_embeddings={most}"
        raise ConfigError(
            f"{limit} is less than data.max_prompt_length + data.max_response_length = {longest_row(config)} tokens; "
            f"{'raise it, or ' if given else ''}lower one of the two"
        )


def _check_adapter(config: Any, key: str, model: ModelFolder) -> None:
    """An adapter to start from must be one, and of this base; the engine compares rank, alpha and targets."""
    folder = OmegaConf.select(config, key)
    if folder is None:
        return
    # PEFT comes with it.
    from atlas_rl.adapters.reading import read_adapter

    try:
        read_adapter(Path(folder)).check_base(model.fingerprint)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def _tokenizer_folder(config: Any) -> Any:
    own = OmegaConf.select(config, f"{MODEL}.tokenizer_path")
    key = f"{MODEL}.path" if own is None else f"{MODEL}.tokenizer_path"
    return read_tokenizer_folder(key, OmegaConf.select(config, key))


def _check_reserve(config: Any, grammar: Mapping[str, BenchmarkGrammar]) -> None:
    """A budget that never holds the longest call would have no text in any turn, and cut calls all the same."""
    budget = count(config, "data.max_response_length")
    for spec, states in grammar.items():
        longest = states.max_call_tokens
        if longest > budget:
            raise ConfigError(
                f"atlas.runtime.reserve_call=true: the longest call of benchmark_spec {spec!r} takes {longest} tokens, "
                f"more than data.max_response_length={budget}; raise it, lower the maxLength of its strings, or set "
                "atlas.runtime.reserve_call=false"
            )


def _check_compiled(
    grammar: Mapping[str, BenchmarkGrammar], protocol: Protocol, model: ModelFolder, *, rungs: bool
) -> None:
    """Compile each grammar as the engine will, and prove that it admits what the reader reads."""
    from atlas_rl.grammar.compiled import compile_states, verify_states

    for benchmark in grammar.values():
        for states in [benchmark, *(benchmark.tightened() if rungs else ())]:
            compiled = compile_states(states, protocol.tokens, protocol.tokenizer, vocab_size=model.vocab_size)
            verify_states(states, compiled, protocol.tokens, protocol.template)


def _token_ids(protocol: Protocol) -> dict[str, Any]:
    tokens = protocol.tokens
    return {
        "call_begin": tokens.call_begin_id,
        "call_end": tokens.call_end_id,
        "end_of_turn": tokens.end_of_turn_id,
        "stop": list(tokens.stop_ids),
        "control": list(tokens.control_ids),
    }


def _num_rows(files: list[DatasetFile]) -> int:
    return sum(len(file.openings) for file in files)
