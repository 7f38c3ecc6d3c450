from decimal import Decimal
from fractions import Fraction

import pytest
from reward_episodes import Table

from atlas_rl.errors import ConfigError, RewardError
from atlas_rl.rewards.potentials import BUILT_IN, ZERO, compose, exact_value


def test_no_part_and_the_zero_part_are_worth_nothing() -> None:
    assert compose(()) is ZERO
    assert exact_value(compose((("zero", Decimal(3)),)), "q", "p", "f", 4) == 0


def test_parts_add_up_exactly_by_weight() -> None:
    known = {**BUILT_IN, "low": Table((0.5, 0.25)), "high": Table((1.0, 0.75))}
    potential = compose((("low", Decimal("0.1")), ("zero", Decimal(9)), ("high", Decimal("0.2"))), known)
    assert exact_value(potential, "q", "p", "f", 0) == Fraction(25, 100)
    assert exact_value(potential, "q", "p", "f", 1) == Fraction(175, 1000)


def test_a_part_is_asked_for_the_row_it_is_bound_to() -> None:
    asked: list[tuple[object, ...]] = []
    potential = compose((("table", Decimal(1)),), {"table": Table((0.0, 0.0, 0.0), lambda *row: asked.append(row))})
    exact_value(potential, "q7", "p3", "f9", 2)
    assert asked == [("q7", "p3", "f9", 2)]


def test_an_unknown_part_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match=r"reward\.potentials\.table is not known; use one of: zero"):
        compose((("table", Decimal(1)),))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_potential_that_is_no_number_is_an_error(value: float) -> None:
    with pytest.raises(RewardError, match="question 'q', permutation 'p', prefix 0"):
        exact_value(Table((value,)), "q", "p", "f", 0)
