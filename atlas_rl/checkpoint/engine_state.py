"""From a module, its optimizer and its scheduler to a RankState, and back. Plain modules and FSDP2 ones alike."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from atlas_rl.checkpoint.rng import capture_rng, restore_rng
from atlas_rl.checkpoint.state import RankState
from atlas_rl.checkpoint.tensors import DTYPES, TensorSpec, local_part, spec_of
from atlas_rl.checkpoint.tree import LocalShard
from atlas_rl.errors import ConfigError, TrainingError


def trainable_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Every parameter that trains, by name; chosen by requires_grad, so that no head is forgotten for its name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def trainable_specs(module: torch.nn.Module) -> dict[str, TensorSpec]:
    """Dtype and local shape of every parameter that trains: what a step must hold for this module.

    Raises:
        TrainingError: as ``tensors.spec_of``.
    """
    return {name: spec_of(name, parameter) for name, parameter in trainable_parameters(module).items()}


def capture_engine(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
) -> RankState:
    """The state of one rank, its tensors not copied: save it before anything trains on.

    Raises:
        TrainingError: the optimizer does not hold exactly the parameters that train.
    """
    parameters = trainable_parameters(module)
    return RankState(
        trainable=parameters,
        optimizer=optimizer_state(parameters, optimizer),
        scheduler=None if scheduler is None else scheduler.state_dict(),
        rng=capture_rng(),
    )


def restore_engine(
    module: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    state: RankState,
) -> None:
    """Put a loaded state into a rank, and this process's generators back, last of all.

    Parameters are written in place. The optimizer takes the state's tensors over, to where its parameters are.

    Raises:
        ConfigError: names, dtypes, shapes or parameter groups differ, or a scheduler is on one side only.
    """
    parameters = trainable_parameters(module)
    loaded = {name: spec_of(name, tensor) for name, tensor in state.trainable.items()}
    check_trainable("loaded state", loaded, {name: spec_of(name, local_part(p)) for name, p in parameters.items()})
    if (scheduler is None) != (state.scheduler is None):
        raise ConfigError("loaded state: scheduler on one side only; configure the learning rate as it was")
    with torch.no_grad():
        for name, parameter in parameters.items():
            local_part(parameter).copy_(state.trainable[name])
    _restore_optimizer(parameters, optimizer, state.optimizer)
    if scheduler is not None:
        scheduler.load_state_dict(state.scheduler)
    restore_rng(state.rng)


def check_trainable(where: str, saved: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec]) -> None:
    """Refuse trainable tensors other than those of the module.

    Args:
        where: File or state, for the message.
        saved: What was saved.
        expected: What the module has.

    Raises:
        ConfigError: a name is missing or extra, or a dtype, shape or place in the whole tensor differs.
    """
    missing, extra = [n for n in expected if n not in saved], [n for n in saved if n not in expected]
    if missing or extra:
        parts = [f"lacks {len(missing)} that the model trains, first {missing[0]!r}"] if missing else []
        parts += [f"has {len(extra)} that the model does not train, first {extra[0]!r}"] if extra else []
        raise ConfigError(
            f"{where}: of the trainable tensors it {' and '.join(parts)}; build the model as it was saved"
        )
    for name, spec in expected.items():
        if saved[name] != spec:
            raise ConfigError(
                f"{where}: tensor {name!r} is {saved[name]}, the model's is {spec}; build the model as it was saved"
            )


def optimizer_state(parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state dict with names for numbers: ``groups`` (options and names) and ``state`` by name.

    Args:
        parameters: Those that train, by name.
        optimizer: Of these parameters.

    Raises:
        TrainingError: the optimizer does not hold exactly the parameters that train.
    """
    plain = optimizer.state_dict()
    names = _names(parameters, optimizer)
    numbers = [number for group in plain["param_groups"] for number in group["params"]]
    by_number = dict(zip(numbers, (name for group in names for name in group), strict=True))
    return {
        "groups": [group | {"params": own} for group, own in zip(plain["param_groups"], names, strict=True)],
        "state": {by_number[number]: state for number, state in plain["state"].items()},
    }


def _names(parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """[groups][parameters] names of what the optimizer holds."""
    by_id = {id(parameter): name for name, parameter in parameters.items()}
    held = [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
    all_held = {one for group in held for one in group}
    unknown = len(all_held - set(by_id))
    left_out = [name for one, name in by_id.items() if one not in all_held]
    if unknown or left_out:
        raise TrainingError(
            f"optimizer: holds {unknown} parameters that do not train and lacks {len(left_out)} that do "
            f"({left_out[:1]}); build it from the parameters that require gradients"
        )
    return [[by_id[one] for one in group] for group in held]


def _restore_optimizer(
    parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]
) -> None:
    names = _names(parameters, optimizer)
    if [group["params"] for group in saved["groups"]] != names:
        raise ConfigError("optimizer: the saved parameter groups hold other names; configure the optimizer as it was")
    plain = optimizer.state_dict()
    numbers = {
        name: number
        for group, own in zip(plain["param_groups"], names, strict=True)
        for number, name in zip(group["params"], own, strict=True)
    }
    groups = [
        group | {"params": own["params"]} for group, own in zip(saved["groups"], plain["param_groups"], strict=True)
    ]
    state = {
        name: {key: _on_mesh(value, parameters[name]) for key, value in values.items()}
        for name, values in saved["state"].items()
    }
    optimizer.load_state_dict(
        {"param_groups": groups, "state": {numbers[name]: values for name, values in state.items()}}
    )
    for name, values in saved["state"].items():
        for key, value in values.items():
            _require_same_dtype(f"{name}: {key}", value, optimizer.state[parameters[name]][key])


def _on_mesh(value: Any, parameter: torch.nn.Parameter) -> Any:
    """A saved shard as a DTensor laid out like its parameter; other values as they are."""
    if not isinstance(value, LocalShard):
        return value
    if not isinstance(parameter, DTensor):
        raise ConfigError("optimizer: the saved state is sharded, the model is not; wrap the model as it was")
    local = value.local.to(parameter.to_local().device)
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _require_same_dtype(where: str, saved: Any, loaded: Any) -> None:
    """torch casts state to the dtype of its parameter; that would be another optimizer."""
    plain = saved.local if isinstance(saved, LocalShard) else saved
    if isinstance(plain, torch.Tensor) and plain.dtype != loaded.dtype:
        raise ConfigError(
            f"optimizer: {where} was saved as {DTYPES[plain.dtype]} and would be loaded as {DTYPES[loaded.dtype]}; "
            "give the parameters the dtype of their optimizer state"
        )
