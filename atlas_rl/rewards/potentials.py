"""Potentials: what a prefix of revealed candidates is worth before the answer is known."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Protocol

from atlas_rl.errors import ConfigError, RewardError


class Potential(Protocol):
    """A pure function of a row and how many of its candidates are revealed."""

    def value(self, question_id: str, permutation_id: str, candidate_fingerprint: str, prefix: int) -> Fraction | float:
        """Worth of the first ``prefix`` candidates, in units of accuracy.

        Raises:
            RewardError: the potential does not know the row, or knows it with other candidates.
        """
        ...


@dataclass(frozen=True, slots=True)
class ZeroPotential:
    """Worth 0 everywhere: each action earns its own cost and nothing else."""

    def value(self, question_id: str, permutation_id: str, candidate_fingerprint: str, prefix: int) -> Fraction:
        """Return 0."""
        return Fraction(0)


_FLOAT32_END = 2**128


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """Sum of weight times part, added exactly and remembered: an episode asks for most prefixes twice."""

    parts: tuple[tuple[str, Fraction, Potential], ...]
    """Name, weight and part."""
    _known: dict[tuple[str, str, str, int], Fraction] = field(default_factory=dict, repr=False, compare=False)

    def value(self, question_id: str, permutation_id: str, candidate_fingerprint: str, prefix: int) -> Fraction:
        """Worth of the first ``prefix`` candidates, in units of accuracy.

        Raises:
            RewardError: a part does not know the row or gives no finite number, and the message names the part; or
                the sum is more than a reward can hold.
        """
        row = (question_id, permutation_id, candidate_fingerprint, prefix)
        total = self._known.get(row)
        if total is None:
            total = Fraction(0)
            for name, weight, part in self.parts:
                try:
                    total += weight * exact_value(part, *row)
                except RewardError as error:
                    raise RewardError(f"reward.potentials.{name}: {error}") from error
            if abs(total) >= _FLOAT32_END:
                raise RewardError(f"reward.potentials of prefix {prefix} add up beyond float32; lower the weights")
            self._known[row] = total
        return total


ZERO = ZeroPotential()
BUILT_IN: Mapping[str, Potential] = MappingProxyType({"zero": ZERO})
"""Potentials that need no file."""


def exact_value(
    potential: Potential, question_id: str, permutation_id: str, candidate_fingerprint: str, prefix: int
) -> Fraction:
    """Return the potential's value as an exact fraction.

    Raises:
        RewardError: the value is not finite.
    """
    value = potential.value(question_id, permutation_id, candidate_fingerprint, prefix)
    if isinstance(value, Fraction):
        return value
    if not math.isfinite(value):
        raise RewardError(
            f"potential of question {question_id!r}, permutation {permutation_id!r}, prefix {prefix} is {value}; "
            "every prefix needs a finite value"
        )
    return Fraction(value)


def compose(parts: Sequence[tuple[str, Decimal]], known: Mapping[str, Potential] = BUILT_IN) -> Potential:
    """Return the weighted sum of named parts; no part at all is zero.

    Args:
        parts: names and weights, as ``RewardConfig.potentials`` holds them.
        known: what each name stands for; whoever reads a potential from a file adds it here.

    Raises:
        ConfigError: a name is not known.
    """
    for name, _ in parts:
        if name not in known:
            raise ConfigError(
                f"reward.potentials.{name} is not known; use one of: {', '.join(sorted(known))}, or name its file: "
                f"atlas.potentials.{name}.path=FILE.parquet"
            )
    weighted = tuple((name, Fraction(weight), known[name]) for name, weight in parts)
    return WeightedSum(weighted) if weighted else ZERO
