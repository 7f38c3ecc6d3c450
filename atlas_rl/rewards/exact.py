"""Arithmetic that is exact or refuses: decimals for money, fractions where a potential joins in."""

from collections.abc import Iterable, Sequence
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from fractions import Fraction
from math import lcm
from typing import NamedTuple, TypeAlias

from atlas_rl.errors import RewardError

MAX_DIGITS = 60
"""Digits that an exact price or sum of money may need."""
_CONTEXT = Context(prec=MAX_DIGITS, traps=[Inexact])
_UNBOUNDED = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])
"""For sums of prices: they take as many digits as they need."""
_multiply, _fma, _add, _subtract = _CONTEXT.multiply, _CONTEXT.fma, _UNBOUNDED.add, _UNBOUNDED.subtract

Exact: TypeAlias = Decimal | Fraction
"""A number without rounding: a decimal, several times faster, as long as no potential is part of it."""
NOTHING = Decimal(0)


class Prices(NamedTuple):
    """What exploring costs, in units of accuracy (1 is one right answer)."""

    per_explore: Decimal
    """Price of one executed explore."""
    per_dollar: Decimal
    """Price of one US dollar charged by executed explores."""

    def penalty(self, num_explores: int, cost_usd: Decimal) -> Decimal:
        """Exact price of ``num_explores`` explores that were charged ``cost_usd`` together.

        Raises:
            RewardError: the price has more digits than are kept.
        """
        try:
            return _fma(self.per_explore, num_explores, _multiply(self.per_dollar, cost_usd))
        except Inexact as error:
            raise _too_fine(f"price of {num_explores} explores and {cost_usd} USD") from error


def add_money(amounts_usd: Iterable[Decimal]) -> Decimal:
    """Add US dollars exactly; the default decimal context would round a long sum without a word.

    Raises:
        RewardError: the sum has more digits than are kept.
    """
    total = Decimal(0)
    for amount in amounts_usd:
        try:
            total = _CONTEXT.add(total, amount)
        except Inexact as error:
            raise _too_fine(f"sum of {total} and {amount} USD") from error
    return total


def minus(left: Decimal, right: Decimal) -> Decimal:
    """Subtract two decimals exactly, whatever the digits; never -0."""
    return _subtract(left, right)


def plus(left: Decimal, right: Decimal) -> Decimal:
    """Add two decimals exactly, whatever the digits."""
    return _add(left, right)


def add_exact(terms: Sequence[Exact]) -> Exact:
    """Add decimals, or fractions and decimals; a decimal if all of them are."""
    total: Decimal = NOTHING
    for term in terms:
        if type(term) is not Decimal:
            return add_fractions([Fraction(each) for each in terms])
        total = _add(total, term)
    return total


def to_float(value: Exact) -> float:
    """The nearest float, 0.0 also for a decimal -0."""
    return float(value) if value else 0.0


def add_fractions(terms: Sequence[Fraction]) -> Fraction:
    """Add over one common denominator, which is several times faster than one by one."""
    denominator = lcm(*(term.denominator for term in terms))
    return Fraction(sum(term.numerator * (denominator // term.denominator) for term in terms), denominator)


def _too_fine(what: str) -> RewardError:
    return RewardError(f"{what} needs more than {MAX_DIGITS} digits; round the price table or the reward's prices")
