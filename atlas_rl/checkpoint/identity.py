"""What a step was trained as: a run may only go on from a step of its own kind."""

from collections.abc import Mapping
from dataclasses import dataclass

from atlas_rl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LoraIdentity:
    """The adapter of a model."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    """Names of the modules that carry the adapter; their order does not count."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_modules", tuple(sorted(self.target_modules)))


@dataclass(frozen=True, kw_only=True)
class ModelIdentity:
    """One model that trains."""

    world_size: int
    """Ranks that its tensors are spread over."""
    base_fingerprint: str
    """Of the weights that it started from; the base itself is not saved."""
    lora: LoraIdentity | None
    """None if the whole model trains."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """All models of a run."""

    run_id: str
    models: Mapping[str, ModelIdentity]
    """By name: actor, critic."""


def check_model(where: str, model: str, saved: ModelIdentity, expected: ModelIdentity) -> None:
    """Refuse a model of another kind.

    Args:
        where: The step's folder, for the message.
        model: Its name.
        saved: As the step says.
        expected: As the run is configured.

    Raises:
        ConfigError: they differ; the message gives the first difference, both values and the remedy.
    """
    for what, seen, wanted, remedy in _facts(saved, expected):
        if seen != wanted:
            raise ConfigError(f"{where}: {model} was saved with {what} {seen}, this run has {wanted}; {remedy}")


def check_run(where: str, saved: RunIdentity, expected: RunIdentity) -> None:
    """Refuse a step of another run or with other models.

    Raises:
        ConfigError: as ``check_model``, or the run id or the names of the models differ.
    """
    if saved.run_id != expected.run_id:
        raise ConfigError(
            f"{where}: saved by run {saved.run_id!r}, this is run {expected.run_id!r}; a resumed run keeps its id, so "
            "set it to that, or start from exported adapters"
        )
    if set(saved.models) != set(expected.models):
        raise ConfigError(
            f"{where}: saved with the models {sorted(saved.models)}, this run has {sorted(expected.models)}; configure "
            "the same models"
        )
    for model, identity in expected.models.items():
        check_model(where, model, saved.models[model], identity)


def _facts(saved: ModelIdentity, expected: ModelIdentity) -> list[tuple[str, object, object, str]]:
    """Name, saved value, expected value and remedy of everything that has to agree."""
    facts: list[tuple[str, object, object, str]] = [
        (
            "world size", saved.world_size, expected.world_size,
            f"resume it on {saved.world_size} ranks, or export its adapters and start a new run from them",
        ),
        (
            "base fingerprint", saved.base_fingerprint, expected.base_fingerprint,
            "give the base model that it was trained from",
        ),
    ]  # fmt: skip
    adapters = _lora_facts(saved.lora), _lora_facts(expected.lora)
    remedy = "set the adapter's keys as they were"
    facts += [(what, adapters[0][what], adapters[1][what], remedy) for what in adapters[0]]
    return facts


def _lora_facts(lora: LoraIdentity | None) -> dict[str, object]:
    if lora is None:
        return {"LoRA rank": "none", "LoRA alpha": "none", "target modules": "none"}
    return {"LoRA rank": lora.rank, "LoRA alpha": lora.alpha, "target modules": list(lora.target_modules)}
