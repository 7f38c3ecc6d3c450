from decimal import Decimal
from fractions import Fraction

import pytest

from atlas_rl.errors import RewardError
from atlas_rl.rewards.exact import Prices, add_fractions, add_money


def test_a_penalty_is_exact() -> None:
    prices = Prices(Decimal("0.02"), Decimal("0.10"))
    assert prices.penalty(3, Decimal("0.000123")) == Fraction(60_0123, 10_000_000)
    assert prices.penalty(0, Decimal(0)) == 0


def test_fractions_add_up_like_one_by_one() -> None:
    terms = [Fraction(1, 3), Fraction(-7, 100), Fraction(0.1), Fraction(2)]
    assert add_fractions(terms) == sum(terms)
    assert add_fractions([]) == 0


def test_what_would_be_rounded_is_refused() -> None:
    with pytest.raises(RewardError, match="price of 1 explores and 1E-30 USD needs more than 60 digits"):
        Prices(Decimal("1E+31"), Decimal(1)).penalty(1, Decimal("1E-30"))
    with pytest.raises(RewardError, match="needs more than 60 digits; round the price table"):
        add_money([Decimal("1E+30"), Decimal("1E-31")])
