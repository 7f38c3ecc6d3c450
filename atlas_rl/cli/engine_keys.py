"""What the rollout engine must not be told while a grammar constrains it, and at which ids it stops.

verl hands every key of ``engine_kwargs.vllm`` on to vLLM unseen, and vLLM takes some of them without a word and then
samples outside the grammar, or with another tokenizer than the one that was checked.
"""

import dataclasses
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from atlas_rl.cli.prompts import Protocol
from atlas_rl.cli.verl_keys import ROLLOUT, shown
from atlas_rl.errors import ConfigError, GrammarError
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.stop_ids import engine_stop_ids

VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
OUTPUTS = f"{VLLM}.structured_outputs_config"

_OTHER_TEXTS = {
    "tokenizer": "the engine would use another tokenizer than the one that was checked",
    "tokenizer_revision": "the engine would use another tokenizer than the one that was checked",
    "generation_config": "the engine's stop ids are read from the model's own generation_config.json",
    "override_generation_config": "every request states its own sampling and its stop ids are checked",
    "ignore_eos": "a turn ends with its end token",
}
"""Engine arguments that are wrong with a grammar and without."""

_SPECULATION = "draft tokens can leave the grammar or end the request"
_REASONING = "a reasoning parser switches the grammar off until it sees the reasoning end"
_FALLBACK = "vLLM 0.26 does not know it and would not start; the backend never falls back once it is named"
_UNDER_GRAMMAR = {
    "speculative_config": _SPECULATION,
    "spec_method": _SPECULATION,
    "spec_model": _SPECULATION,
    "spec_tokens": _SPECULATION,
    "num_speculative_tokens": _SPECULATION,
    "speculative_model": _SPECULATION,
    "diffusion_config": "a canvas of tokens is not sampled one by one, as the grammar is followed",
    "reasoning_parser": _REASONING,
    "reasoning_parser_plugin": _REASONING,
    "reasoning_config": _REASONING,
    "min_tokens": "a minimum forbids the end of turn where it is the only legal token, which fails the request",
    "guided_decoding_backend": _FALLBACK,
    "guided_decoding_disable_fallback": _FALLBACK,
    "skip_tokenizer_init": "without a tokenizer the engine cannot compile a grammar",
}
_OUTPUT_KEYS = {"backend": "xgrammar", "disable_any_whitespace": False, "enable_in_reasoning": False}
"""Keys of structured_outputs_config that change nothing for a structural tag, beside the backend."""


def check_engine_keys(config: Any, *, is_constrained: bool) -> None:
    """Refuse engine arguments that would take the grammar away, or what it was checked against.

    Args:
        config: The resolved configuration.
        is_constrained: ``atlas.runtime.grammar``.

    Raises:
        ConfigError: key, value, reason and remedy.
    """
    refused = {**_OTHER_TEXTS, **(_UNDER_GRAMMAR if is_constrained else {})}
    for written, value in (OmegaConf.select(config, VLLM) or {}).items():
        reason = refused.get(str(written).replace("-", "_"))
        if reason is not None and not _is_off(value):
            raise ConfigError(f"{VLLM}.{written}={shown(value)}: {reason}; take it out")
    mode = OmegaConf.select(config, f"{VLLM}.tokenizer_mode")
    if mode not in (None, "auto", "hf"):
        raise ConfigError(f"{VLLM}.tokenizer_mode={shown(mode)}: {_OTHER_TEXTS['tokenizer']}; take it out")
    if is_constrained:
        _check_outputs(config)
        mtp = f"{ROLLOUT}.mtp"
        if OmegaConf.select(config, f"{mtp}.enable") and OmegaConf.select(config, f"{mtp}.enable_rollout"):
            raise ConfigError(f"{mtp}.enable_rollout=true: {_SPECULATION}; set {mtp}.enable_rollout=false")


def _is_off(value: Any) -> bool:
    return value is None or value is False or value == "" or (OmegaConf.is_config(value) and not value)


def _check_outputs(config: Any) -> None:
    """The backend itself is looked at with verl's keys."""
    node = OmegaConf.select(config, OUTPUTS)
    for key, value in node.items() if OmegaConf.is_dict(node) else ():
        plain = _OUTPUT_KEYS.get(str(key))
        if value == plain or (key != "backend" and _is_off(value)):
            continue
        reason = _REASONING if str(key).startswith("reasoning") else "it is not provided for beside a structural tag"
        raise ConfigError(f"{OUTPUTS}.{key}={shown(value)}: {reason}; take it out")


def with_stop_ids(protocol: Protocol, folder: Path) -> Protocol:
    """The protocol with every id at which the engine stops.

    Raises:
        ConfigError: from ``engine_stop_ids``.
        GrammarError: one of them is an ordinary token, or no token at all.
    """
    try:
        tokens = ProtocolTokens.from_tokenizer(protocol.tokenizer, extra_stop_ids=engine_stop_ids(folder))
    except GrammarError as error:
        raise GrammarError(f"{folder / 'generation_config.json'}: {error}") from error
    return dataclasses.replace(protocol, tokens=tokens)
