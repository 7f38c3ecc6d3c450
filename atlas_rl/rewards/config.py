"""What a reward is made of: prices, optional terms, and how it is spread over the actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

from atlas_rl.errors import ConfigError
from atlas_rl.rewards.exact import Prices

_Choice = TypeVar("_Choice", bound=StrEnum)


class Preset(StrEnum):
    """The named prices of an exploration."""

    EXPLORE_0_01 = "explore_0.01"
    """0.01 per explore, nothing per dollar."""
    DOLLAR_0_1 = "dollar_0.1"
    """Nothing per explore, 0.1 per dollar."""
    BOTH = "both"
    """0.02 per explore and 0.10 per dollar."""
    CUSTOM = "custom"
    """``per_explore`` and ``per_dollar`` as given."""


class ProcessMode(StrEnum):
    """Which tokens the final reward is spread over."""

    TERMINAL = "terminal"
    """All of it sits on the terminal token; explores earn 0."""
    POTENTIAL = "potential"
    """Each action earns its own cost and its own change of potential."""

    @property
    def code(self) -> int:
        """The mode as a number for tensors and tables: 0 terminal, 1 potential."""
        return list(ProcessMode).index(self)


_PRESET_PRICES = {
    Preset.EXPLORE_0_01: (Decimal("0.01"), Decimal(0)),
    Preset.DOLLAR_0_1: (Decimal(0), Decimal("0.1")),
    Preset.BOTH: (Decimal("0.02"), Decimal("0.10")),
}


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """One reward definition; every amount is in units of accuracy (1 is one right answer) and exact.

    Raises:
        ConfigError: a value is out of range or contradicts another.
    """

    preset: Preset = Preset.EXPLORE_0_01
    per_explore: Decimal | None = None
    """At least 0; given if and only if the preset is custom."""
    per_dollar: Decimal | None = None
    """At least 0; given if and only if the preset is custom."""
    utility_per_explore: Decimal | None = None
    """Price in ``utility``, at least 0; None: the objective's."""
    utility_per_dollar: Decimal | None = None
    """Price in ``utility``, at least 0; None: the objective's."""
    format_score: Decimal = Decimal(0)
    """Added once for a submit with a non-empty answer, right or wrong; at least 0."""
    overlong_penalty: Decimal = Decimal(0)
    """Taken once from an overlong episode; at least 0."""
    overlong_from_tokens: int | None = None
    """An episode with at least this many response tokens is overlong; at least 1, None: none is."""
    process_mode: ProcessMode = ProcessMode.POTENTIAL
    potentials: tuple[tuple[str, Decimal], ...] = ()
    """Names and weights of the parts whose weighted sum is the potential; empty: zero."""

    def __post_init__(self) -> None:
        """Check every value."""
        if not isinstance(self.preset, Preset) or not isinstance(self.process_mode, ProcessMode):
            raise ConfigError(
                f"reward.preset={self.preset!r}, reward.process_mode={self.process_mode!r} must be a Preset and a "
                "ProcessMode; read plain text with RewardConfig.from_mapping"
            )
        for name in ("per_explore", "per_dollar", "utility_per_explore", "utility_per_dollar"):
            _check_amount(f"reward.{name}", getattr(self, name), optional=True)
        for name in ("format_score", "overlong_penalty"):
            _check_amount(f"reward.{name}", getattr(self, name), optional=False)
        self._check_prices()
        self._check_overlong()
        self._check_potentials()

    def _check_prices(self) -> None:
        given = [name for name in ("per_explore", "per_dollar") if getattr(self, name) is not None]
        if self.preset is Preset.CUSTOM and len(given) < 2:
            raise ConfigError(f"reward.preset=custom needs reward.per_explore and reward.per_dollar, got {given}")
        if self.preset is not Preset.CUSTOM and given:
            raise ConfigError(
                f"reward.{given[0]}={getattr(self, given[0])} is given beside reward.preset={self.preset}, which sets "
                "it; use preset custom or leave it out"
            )

    def _check_overlong(self) -> None:
        limit = self.overlong_from_tokens
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ConfigError(f"reward.overlong_from_tokens must be a whole number from 1 or null, got {limit!r}")
        if self.overlong_penalty and limit is None:
            raise ConfigError(
                f"reward.overlong_penalty={self.overlong_penalty} never applies; set reward.overlong_from_tokens"
            )

    def _check_potentials(self) -> None:
        names = [name for name, _ in self.potentials]
        if len(set(names)) != len(names):
            raise ConfigError(f"reward.potentials names a part twice: {names}; give each one weight")
        for name, weight in self.potentials:
            if not isinstance(weight, Decimal) or not weight.is_finite():
                raise ConfigError(f"reward.potentials.{name} must be a finite Decimal weight, got {weight!r}")
        if self.potentials and self.process_mode is ProcessMode.TERMINAL:
            raise ConfigError(
                f"reward.potentials={names} have no place in reward.process_mode=terminal; use potential, or leave "
                "them out"
            )

    @cached_property
    def objective_prices(self) -> Prices:
        """The prices of ``objective``."""
        per_explore, per_dollar = _PRESET_PRICES.get(self.preset, (self.per_explore, self.per_dollar))
        assert per_explore is not None
        assert per_dollar is not None
        return Prices(per_explore, per_dollar)

    @cached_property
    def utility_prices(self) -> Prices:
        """The prices of ``utility``, the objective's where not given."""
        objective = self.objective_prices
        return Prices(
            objective.per_explore if self.utility_per_explore is None else self.utility_per_explore,
            objective.per_dollar if self.utility_per_dollar is None else self.utility_per_dollar,
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "RewardConfig":
        """Read plain values, as YAML or ``to_mapping`` give them; ``potentials`` maps name to weight.

        A float stands for the shortest decimal that reads back as it, so 0.1 is exactly one tenth.

        Raises:
            ConfigError: an unknown key, or a value that cannot be used.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"reward.{unknown[0]} is no key of the reward; use one of: {', '.join(sorted(known))}")
        read: dict[str, Any] = {}
        for name, value in values.items():
            if name == "preset":
                read[name] = _choice(Preset, "reward.preset", value)
            elif name == "process_mode":
                read[name] = _choice(ProcessMode, "reward.process_mode", value)
            elif name == "overlong_from_tokens":
                read[name] = value
            elif name == "potentials":
                read[name] = _weights(value)
            else:
                read[name] = None if value is None else _decimal(f"reward.{name}", value)
        return cls(**read)

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values from which ``from_mapping`` makes an equal config; decimals are strings."""
        plain: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            plain[field.name] = str(value) if isinstance(value, Decimal | StrEnum) else value
        plain["potentials"] = {name: str(weight) for name, weight in self.potentials}
        return plain


def _check_amount(name: str, value: Decimal | None, *, optional: bool) -> None:
    if value is None and optional:
        return
    if not isinstance(value, Decimal) or not value.is_finite() or value < 0:
        raise ConfigError(f"{name} must be a finite Decimal of at least 0, got {value!r}")


def _decimal(name: str, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    try:
        return Decimal(str(value))
    except InvalidOperation as error:
        raise ConfigError(f"{name} must be a number, got {value!r}") from error


def _choice(kind: type[_Choice], name: str, value: Any) -> _Choice:
    try:
        return kind(value)
    except ValueError as error:
        raise ConfigError(f"{name}={value!r} is not known; use one of: {', '.join(kind)}") from error


def _weights(value: Any) -> tuple[tuple[str, Decimal], ...]:
    if isinstance(value, Mapping):
        pairs: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str) and all(len(pair) == 2 for pair in value):
        pairs = [(name, weight) for name, weight in value]
    else:
        raise ConfigError(f"reward.potentials must map part names to weights, got {value!r}")
    return tuple((str(name), _decimal(f"reward.potentials.{name}", weight)) for name, weight in pairs)
