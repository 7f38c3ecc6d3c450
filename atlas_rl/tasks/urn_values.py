"""Exact values of urn policies by dynamic programming over how often each letter was drawn.

Letters are interchangeable, so a state is the counts in descending order, zeros kept. Everything is a Fraction:
comparisons are exact and ties are real ties.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal, NamedTuple

from atlas_rl.errors import ConfigError

Counts = tuple[int, ...]
"""[num_letters] draws of each letter, in descending order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Urn:
    """One urn decision problem in utility units."""

    odds: Fraction
    """Probability in (1 / num_letters, 1] that a draw shows the hidden letter."""
    num_letters: int
    """At least 2."""
    num_candidates: int
    """Most explores an episode can make, at least 0."""
    cost: Fraction
    """Utility that one explore costs, at least 0."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: a field is outside its documented range.
        """
        if self.num_letters < 2 or self.num_candidates < 0 or self.cost < 0:
            raise ConfigError(f"urn needs num_letters >= 2, num_candidates >= 0 and cost >= 0, got {self}")
        if not Fraction(1, self.num_letters) < self.odds <= 1:
            raise ConfigError(f"urn odds must lie in (1/{self.num_letters}, 1], got {self.odds}")

    def posteriors(self, counts: Sequence[int]) -> tuple[Fraction, ...]:
        """Probability of each letter to be the hidden one, given its count; parallel to ``counts``.

        Raises:
            ConfigError: ``counts`` is impossible under these odds, or of the wrong length.
        """
        if len(counts) != self.num_letters or min(counts) < 0:
            raise ConfigError(f"urn counts must be {self.num_letters} numbers of at least 0, got {tuple(counts)}")
        wrong, total = (1 - self.odds) / (self.num_letters - 1), sum(counts)
        likelihoods = [self.odds**count * wrong ** (total - count) for count in counts]
        evidence = sum(likelihoods)
        if not evidence:
            raise ConfigError(f"urn with odds {self.odds}: counts {tuple(counts)} cannot happen")
        return tuple(likelihood / evidence for likelihood in likelihoods)

    def draws(self, counts: Counts) -> Iterator[tuple[Fraction, Counts]]:
        """Each next state (descending counts) after one more draw, with its probability; equal states may repeat."""
        posteriors = self.posteriors(counts)
        wrong = (1 - self.odds) / (self.num_letters - 1)
        for letter, believed in enumerate(posteriors):
            probability = believed * self.odds + (1 - believed) * wrong
            if probability:
                following = [*counts[:letter], counts[letter] + 1, *counts[letter + 1 :]]
                yield probability, tuple(sorted(following, reverse=True))


class StateValue(NamedTuple):
    """What a state is worth from here on; costs already paid are not part of it."""

    submit: Fraction
    """Submitting the most probable letter now: its posterior."""
    explore: Fraction | None
    """Exploring once more and acting best after it; None if no candidate is left."""
    action: Literal["submit", "explore"]
    """The better of the two; submit if they tie."""

    @property
    def value(self) -> Fraction:
        """Utility of acting best from here on."""
        return self.explore if self.action == "explore" and self.explore is not None else self.submit


@cache
def state_value(urn: Urn, counts: Counts) -> StateValue:
    """Value and best action of the state with these counts, given in descending order.

    Raises:
        ConfigError: the counts are not in descending order, impossible, or more than ``num_candidates`` draws.
    """
    if list(counts) != sorted(counts, reverse=True) or sum(counts) > urn.num_candidates:
        raise ConfigError(f"urn state {counts}: need descending counts of at most {urn.num_candidates} draws")
    submit = max(urn.posteriors(counts))
    if sum(counts) == urn.num_candidates:
        return StateValue(submit, None, "submit")
    explore = sum((share * state_value(urn, after).value for share, after in urn.draws(counts)), -urn.cost)
    return StateValue(submit, explore, "explore" if explore > submit else "submit")


def optimal_value(urn: Urn) -> Fraction:
    """Expected utility of the best policy there is, from the first turn."""
    return state_value(urn, (0,) * urn.num_letters).value


def fixed_value(urn: Urn, num_explores: int) -> Fraction:
    """Expected utility of exploring exactly ``num_explores`` times, then submitting the most probable letter.

    Letters that tie are equally probable: whichever is submitted, the value is the same.

    Raises:
        ConfigError: ``num_explores`` is outside 0..num_candidates.
    """
    if not 0 <= num_explores <= urn.num_candidates:
        raise ConfigError(f"urn: fixed number of explores must lie in 0..{urn.num_candidates}, got {num_explores}")
    return _accuracy(urn.odds, urn.num_letters, num_explores) - num_explores * urn.cost


def stopping_value(urn: Urn, stops: Mapping[int, Fraction | int]) -> Fraction:
    """Expected utility of a demonstrator that draws its number of explores blindly, then submits the plurality.

    Args:
        urn: The problem.
        stops: Weight of each number of explores; weights need not sum to 1.

    Raises:
        ConfigError: no positive weight, a negative one, or a number of explores out of range.
    """
    total = sum(Fraction(weight) for weight in stops.values())
    if total <= 0 or min(stops.values()) < 0:
        raise ConfigError(f"urn: stop weights must be at least 0 and not all 0, got {dict(stops)}")
    return sum((Fraction(weight) / total * fixed_value(urn, stop) for stop, weight in stops.items()), Fraction(0))


class FixedPolicy(NamedTuple):
    """The best policy of those that explore equally often on every question."""

    num_explores: int
    value: Fraction
    """Mean expected utility over the questions."""


def best_fixed(urns: Sequence[Urn]) -> FixedPolicy:
    """The one number of explores that is best on average over ``urns``; the smallest if several tie.

    Raises:
        ConfigError: no urns.
    """
    if not urns:
        raise ConfigError("best fixed number of explores of no urns; give at least one")
    longest = min(urn.num_candidates for urn in urns)
    means = [mean_value([fixed_value(urn, num) for urn in urns]) for num in range(longest + 1)]
    best = max(means)
    return FixedPolicy(means.index(best), best)


def mean_value(values: Sequence[Fraction]) -> Fraction:
    """Exact mean.

    Raises:
        ConfigError: no values.
    """
    if not values:
        raise ConfigError("mean of no values; give at least one")
    return sum(values, Fraction(0)) / len(values)


@cache
def _accuracy(odds: Fraction, num_letters: int, num_draws: int) -> Fraction:
    urn = Urn(odds=odds, num_letters=num_letters, num_candidates=num_draws, cost=Fraction(0))
    states: dict[Counts, Fraction] = {(0,) * num_letters: Fraction(1)}
    for _ in range(num_draws):
        following: dict[Counts, Fraction] = {}
        for counts, share in states.items():
            for probability, after in urn.draws(counts):
                following[after] = following.get(after, Fraction(0)) + share * probability
        states = following
    return sum((share * max(urn.posteriors(counts)) for counts, share in states.items()), Fraction(0))
