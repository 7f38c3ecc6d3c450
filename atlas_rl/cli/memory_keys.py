"""What the memory check asks of other keys, checked before anything starts."""

from typing import Any

from omegaconf import OmegaConf

from atlas_rl.cli.verl_keys import shown
from atlas_rl.errors import ConfigError
from atlas_rl.training.config import AtlasConfig

_ASKED: tuple[tuple[str, Any, str], ...] = (
    ("trainer.val_only", False, "no model would be updated"),
    ("trainer.critic_warmup", 0, "the actor would not be updated in the real step"),
    ("atlas.run.resume", False, "synthetic rows have trained what it saved"),
)
"""Key, the one value that a check can be made with, and why."""


def check_memory_keys(config: Any, atlas: AtlasConfig) -> None:
    """Refuse a memory check that could not measure what it is for; without a check, nothing.

    Args:
        config: The resolved configuration.
        atlas: Its ``atlas`` node.

    Raises:
        ConfigError: key, value, reason and remedy.
    """
    if not atlas.memory_check.enabled:
        return
    for key, wanted, reason in _ASKED:
        seen = OmegaConf.select(config, key)
        if seen is not None and seen != wanted:
            raise ConfigError(
                f"{key}={shown(seen)}: a memory check cannot be made with it, {reason}; set {key}={shown(wanted)}, or "
                "atlas.memory_check.enabled=false"
            )
