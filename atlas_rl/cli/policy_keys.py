"""What ``atlas.policy`` asks of verl's keys and of the model, checked before anything starts."""

from typing import Any

from omegaconf import OmegaConf

from atlas_rl.cli.model_folder import ModelFolder
from atlas_rl.cli.verl_keys import MODEL, ROLLOUT, shown
from atlas_rl.errors import ConfigError
from atlas_rl.training.config import LOGITS_CHANGED_BY, AtlasConfig

_PLAIN_SAMPLING = (("top_p", 1.0), ("top_k", -1))


def check_policy_keys(config: Any, atlas: AtlasConfig, model: ModelFolder) -> None:
    """Refuse a policy mode that the run could not keep.

    Args:
        config: The resolved configuration.
        atlas: Its ``atlas`` node.
        model: The actor's.

    Raises:
        ConfigError: key, value, reason and remedy.
    """
    policy = atlas.policy
    if policy.logprobs == "grammar":
        if not atlas.runtime.grammar:
            raise ConfigError(
                "atlas.policy.logprobs=grammar: atlas.runtime.grammar=false samples without one; set one of the two"
            )
        for name, plain in _PLAIN_SAMPLING:
            seen = OmegaConf.select(config, f"{ROLLOUT}.{name}")
            if seen != plain:
                raise ConfigError(
                    f"{ROLLOUT}.{name}={shown(seen)}: the sampled distribution would not be the one that "
                    f"atlas.policy.logprobs=grammar trains on; set {ROLLOUT}.{name}={shown(plain)}"
                )
        if not policy.train_forced_tokens:
            raise ConfigError(
                "atlas.policy.train_forced_tokens=false is for atlas.policy.logprobs=full_vocab; under grammar forced "
                "tokens never train; leave it out"
            )
    if policy.head_chunk_tokens is not None:
        _check_head(config, model)


def _check_head(config: Any, model: ModelFolder) -> None:
    without = "atlas.policy.logprobs=full_vocab and atlas.policy.head_chunk_tokens=null"
    if OmegaConf.select(config, f"{MODEL}.use_fused_kernels"):
        raise ConfigError(
            f"{MODEL}.use_fused_kernels=true: the chunked head takes its place; set it to false, or {without}"
        )
    if "lm_head" in (OmegaConf.select(config, f"{MODEL}.target_modules") or ()):
        raise ConfigError(
            f"{MODEL}.target_modules holds lm_head: the chunked head computes without an adapter; take it out, or set "
            f"{without}"
        )
    text = model.config.get("text_config", model.config)
    for name, plain in LOGITS_CHANGED_BY.items():
        if text.get(name) not in (None, plain):
            raise ConfigError(
                f"{model.path / 'config.json'}: {name}={text[name]} changes the logits after the head; set {without}"
            )
