"""Which keys of a run's configuration differ from what this repository ships."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from atlas_rl.cli.known_keys import verl_folder
from atlas_rl.reporting.manifest import leaves
from atlas_rl.rewards.config import RewardConfig

ABSENT = object()
"""Stands for the value of a key that one side does not have."""


def changed_keys(config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Default and value of every leaf that differs from configs/train.yaml of this checkout, sorted by key.

    A default that refers to other keys is worked out within ``config``: what merely follows a changed key is left out.

    Args:
        config: The resolved configuration of a manifest.

    Raises:
        ConfigError: verl, whose defaults are below ours, is not installed.
    """
    values, within = leaves(dict(config)), OmegaConf.create(dict(config))
    defaults: dict[str, Any] = {}
    for key, default in leaves(_shipped()).items():
        refers = isinstance(default, str) and "${" in default
        value = _worked_out(within, key, default) if refers else default
        defaults |= {f"{key}.{name}" if name else key: leaf for name, leaf in leaves(value).items()}
    pairs = {
        key: (defaults.get(key, ABSENT), values.get(key, ABSENT)) for key in sorted(defaults.keys() | values.keys())
    }
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1] or type(pair[0]) is not type(pair[1])}


@cache
def _shipped() -> dict[str, Any]:
    # Hydra is wanted by no other command that reads a run.
    from hydra import compose, initialize_config_dir

    from atlas_rl.cli.composition import CONFIGS

    search = f"hydra.searchpath=[file://{verl_folder() / 'trainer' / 'config'}]"
    with initialize_config_dir(str(CONFIGS), version_base=None):
        composed = compose("train", overrides=[search])
    plain: Any = OmegaConf.to_container(composed, resolve=False)
    # A run writes its rewards down in full.
    plain["atlas"]["reward"] = RewardConfig.from_mapping(plain["atlas"]["reward"]).to_mapping()
    return {str(key): value for key, value in plain.items()}


def _worked_out(within: DictConfig, key: str, default: str) -> Any:
    """What a default that refers to other keys comes to; its text if it refers to nowhere."""
    before = OmegaConf.select(within, key)
    try:
        OmegaConf.update(within, key, default, merge=False, force_add=True)
        value = OmegaConf.select(within, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException:
        return default
    finally:
        OmegaConf.update(within, key, before, merge=False, force_add=True)
