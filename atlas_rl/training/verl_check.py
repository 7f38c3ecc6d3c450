"""verl's own checks of its configuration, which its main program makes and ours would otherwise leave out."""

from typing import Any

from verl.utils.config import omega_conf_to_dataclass

from atlas_rl.errors import ConfigError, blame


def refuse_what_verl_refuses(config: Any) -> None:
    """Build verl's dataclasses and let them validate themselves, before any process is started.

    verl's function for it would import vLLM here, only to look up the ranks that an adapter may have.

    Raises:
        ConfigError: verl refuses a key or a value.
    """
    ranks = config.trainer.n_gpus_per_node * config.trainer.nnodes
    with blame(ConfigError, "verl refuses the configuration"):
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        actor.validate(ranks, config.data.train_batch_size, config.actor_rollout_ref.model)
        critic = omega_conf_to_dataclass(config.critic)
        critic.validate(ranks, config.data.train_batch_size)
