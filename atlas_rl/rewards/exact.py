"""Arithmetic that is exact or refuses: decimals for money, fractions where a potential joins in."""

from collections.abc import Iterable, Sequence
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from math import lcm
from typing import NamedTuple

from atlas_rl.errors import RewardError

MAX_DIGITS = 60
"""Digits that an exact result may need."""
_CONTEXT = Context(prec=MAX_DIGITS, traps=[Inexact])


class Prices(NamedTuple):
    """What exploring costs, in units of accuracy (1 is one right answer)."""

    per_explore: Decimal
    """Price of one executed explore."""
    per_dollar: Decimal
    """Price of one US dollar charged by executed explores."""

    def penalty(self, num_explores: int, cost_usd: Decimal) -> Fraction:
        """Exact price of ``num_explores`` explores that were charged ``cost_usd`` together.

        Raises:
            RewardError: the price has more digits than are kept.
        """
        try:
            for_money = _CONTEXT.multiply(self.per_dollar, cost_usd)
            return Fraction(_CONTEXT.fma(self.per_explore, num_explores, for_money))
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


def add_fractions(terms: Sequence[Fraction]) -> Fraction:
    """Add over one common denominator, which is several times faster than one by one."""
    denominator = lcm(*(term.denominator for term in terms))
    return Fraction(sum(term.numerator * (denominator // term.denominator) for term in terms), denominator)


def _too_fine(what: str) -> RewardError:
    return RewardError(f"{what} needs more than {MAX_DIGITS} digits; round the price table or the reward's prices")
