"""verl's own checks of its configuration, which its main program makes and ours would otherwise leave out."""

from typing import Any

from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from atlas_rl.errors import ConfigError, blame


def refuse_what_verl_refuses(config: Any) -> None:
    """Build verl's dataclasses and let verl validate them, before any process is started.

    Raises:
        ConfigError: verl refuses a key or a value.
    """
    with blame(ConfigError, "verl refuses the configuration"):
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
