"""From the command line to one complete configuration: every way in which Hydra refuses becomes one line."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from atlas_rl.cli.known_keys import hint, refuse_unknown, verl_folder
from atlas_rl.errors import ConfigError, UsageError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
_GROUPS = ("experiment", "hardware")
_MISSING = "???"
_REQUIRED = ("actor_rollout_ref.model.path", "data.train_files", "data.val_files")
"""Keys for which verl has a default of its own, which a mandatory value would not displace; ours is null."""
_UNUSED = "reward.reward_model."
"""verl leaves mandatory values of its reward model open; nothing of ours runs one."""


def compose(arguments: Sequence[str]) -> list[DictConfig]:
    """The configurations that a command line asks for: one, none for ``--help`` and its like, several for a sweep.

    Our own keys need no ``+``: their dataclasses, not the YAML, say which there are.

    Raises:
        ConfigError: an unknown key, option or group, a value that is not given, or an interpolation to nowhere.
        UsageError: an argument that is no ``key=value``.
    """
    composed: list[tuple[DictConfig, list[str]]] = []

    @hydra.main(version_base=None, config_path=str(CONFIGS), config_name="train")
    def take(config: DictConfig) -> None:
        task: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        composed.append((config, list(task)))

    own = {f"++{argument}" if argument.startswith("atlas.") else argument: argument for argument in arguments}
    search_path = f"hydra.searchpath=[file://{verl_folder() / 'trainer' / 'config'}]"
    with _command_line([search_path, *own]):
        try:
            take()
        except OverrideParseException as error:
            given = own.get(error.override, error.override)
            reason = next(line for line in str(error).splitlines() if not line.startswith("Error parsing override"))
            raise UsageError(f"argument {given!r}: {reason}; write key=value") from error
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            raise ConfigError(_explained(error)) from error
    return [complete(config, overrides) for config, overrides in composed]


def complete(config: DictConfig, overrides: Sequence[str] = ()) -> DictConfig:
    """The configuration, resolved and open for new keys, once it is known to be complete.

    Args:
        config: As composed.
        overrides: Command line arguments that made it.

    Raises:
        ConfigError: as ``compose``.
    """
    OmegaConf.set_struct(config, False)
    plain: Any = OmegaConf.to_container(config, resolve=False)
    added = {one.lstrip("+").partition("=")[0] for one in overrides if one.startswith("+")}
    refuse_unknown(plain, added)
    leaves = dict(_leaves(plain))
    missing = [key for key, value in leaves.items() if value == _MISSING and not key.startswith(_UNUSED)]
    missing = sorted({*missing, *(key for key in _REQUIRED if leaves.get(key) is None)})
    if missing:
        given = " ".join(f"{key}=VALUE" for key in missing)
        raise ConfigError(f"{', '.join(missing)} must be set; give {given}, or an experiment=NAME that sets it")
    try:
        OmegaConf.resolve(config)
    except OmegaConfBaseException as error:
        where = _broken_reference(config, leaves, error)
        raise ConfigError(f"{where}: {_first_line(error)}; correct the reference") from error
    return config


@contextmanager
def _command_line(arguments: list[str]) -> Iterator[None]:
    """Let Hydra see ``arguments``, and let it raise what it would otherwise print over many lines."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def _explained(error: Exception) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        known = error.options or [file.stem for file in sorted((CONFIGS / group).glob("*.yaml"))]
        return f"{group or 'config'}={option} is not known; use one of: {', '.join(known)}"
    cause = error.__cause__
    if isinstance(error, ConfigCompositionException) and isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return _unknown_key(cause)
    text = " ".join(str(error).split())
    return text if cause is None else f"{text}: {_first_line(cause)}"


def _unknown_key(cause: Any) -> str:
    parent, _, key = cause.full_key.rpartition(".")
    node = cause.parent_node
    names = [str(name) for name in node] if isinstance(node, Mapping) else []
    if not parent:
        names = [name for name in names if name != "hydra"] + list(_GROUPS)
    return (
        f"unknown key {cause.full_key}; {hint(parent, key, names)} (a key that verl reads but does not list "
        f"is written +{cause.full_key}=VALUE)"
    )


def _leaves(node: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything that is no mapping."""
    for key, value in node.items():
        dotted = f"{parent}.{key}" if parent else str(key)
        if isinstance(value, dict):
            yield from _leaves(value, dotted)
        else:
            yield dotted, value


def _broken_reference(config: DictConfig, leaves: Mapping[str, Any], error: Exception) -> str:
    """Key and value whose reference goes nowhere: the error of a whole tree does not say where in it."""
    broken = []
    for key, value in leaves.items():
        if "${" in str(value):
            try:
                OmegaConf.to_container(OmegaConf.create([OmegaConf.select(config, key)]), resolve=True)
            except OmegaConfBaseException:
                broken.append(f"{key}={value}")
    target = "".join(str(error).split("'")[1:2])
    # A key that refers to the broken one fails too; the culprit is the one that spells the target.
    return min(broken, key=lambda pair: target not in pair, default="the configuration")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
