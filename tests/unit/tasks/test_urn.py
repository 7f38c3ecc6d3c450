"""Urn rows are drawn as documented, and the exact values agree with enumeration and with simulation."""

import itertools
import random
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from atlas_rl.errors import ConfigError, DataError
from atlas_rl.tasks.urn import UrnConfig, make_rows, plurality_letter, posterior, urn_of
from atlas_rl.tasks.urn_values import (
    Urn,
    best_fixed,
    fixed_value,
    mean_value,
    optimal_value,
    state_value,
    stopping_value,
)


def urn(odds: str = "1/2", *, letters: int = 4, candidates: int = 3, cost: str = "1/10") -> Urn:
    """A small decision problem."""
    return Urn(odds=Fraction(odds), num_letters=letters, num_candidates=candidates, cost=Fraction(cost))


def enumerated_joint(problem: Urn, num_draws: int) -> dict[tuple[int, ...], list[Fraction]]:
    """P(draws, hidden letter) for every sequence of draws, one number a hidden letter: written from the definition."""
    joint: dict[tuple[int, ...], list[Fraction]] = {}
    wrong = (1 - problem.odds) / (problem.num_letters - 1)
    for draws in itertools.product(range(problem.num_letters), repeat=num_draws):
        joint[draws] = []
        for hidden in range(problem.num_letters):
            probability = Fraction(1, problem.num_letters)
            for draw in draws:
                probability *= problem.odds if draw == hidden else wrong
            joint[draws].append(probability)
    return joint


def enumerated_optimum(problem: Urn, draws: tuple[int, ...] = ()) -> Fraction:
    """P(draws) times the best value from there, over the tree of ordered draws: no counts and no symmetry used."""
    evidence = enumerated_joint(problem, len(draws))[draws]
    submit = max(evidence)
    if len(draws) == problem.num_candidates:
        return submit
    explore = sum(
        (enumerated_optimum(problem, (*draws, draw)) for draw in range(problem.num_letters)),
        -problem.cost * sum(evidence),
    )
    return max(submit, explore)


@pytest.mark.parametrize(("odds", "letters", "candidates"), [("3/5", 4, 3), ("1/2", 3, 4), ("9/10", 2, 4), ("1", 3, 3)])
@pytest.mark.parametrize("cost", ["0", "1/50", "3/25"])
def test_the_optimum_equals_an_enumeration_of_all_ordered_draws(
    odds: str, letters: int, candidates: int, cost: str
) -> None:
    problem = urn(odds, letters=letters, candidates=candidates, cost=cost)
    assert optimal_value(problem) == enumerated_optimum(problem)


@pytest.mark.parametrize("num_explores", [0, 1, 2, 3, 4])
def test_a_fixed_value_equals_an_enumeration_with_first_seen_plurality(num_explores: int) -> None:
    problem = urn("2/5", candidates=4)
    right = Fraction(0)
    for draws, by_hidden in enumerated_joint(problem, num_explores).items():
        submitted = Counter(draws).most_common(1)[0][0] if draws else 0
        right += by_hidden[submitted]
    assert fixed_value(problem, num_explores) == right - num_explores * Fraction(1, 10)


def test_values_by_hand() -> None:
    # no draw: 1/4; one draw: the odds; sure draws: one is enough; cost 1/10 each
    assert fixed_value(urn("3/5"), 0) == Fraction(1, 4)
    assert fixed_value(urn("3/5"), 1) == Fraction(3, 5) - Fraction(1, 10)
    assert fixed_value(urn("3/5"), 2) == Fraction(3, 5) - Fraction(2, 10)  # a second draw alone never helps
    assert optimal_value(urn("1")) == Fraction(9, 10)
    assert optimal_value(urn("3/10")) == Fraction(1, 4)  # a draw is worth 1/20, less than it costs
    assert stopping_value(urn("3/5"), {0: 1, 1: 3}) == (Fraction(1, 4) + 3 * Fraction(1, 2)) / 4


def test_posteriors_by_hand() -> None:
    # odds 3/5, the others 2/15 each: a draw speaks 9 to 2 for its letter
    assert urn("3/5").posteriors((1, 0, 0, 0)) == (Fraction(9, 15), Fraction(2, 15), Fraction(2, 15), Fraction(2, 15))
    assert posterior(urn("3/5"), ["B", "A"], "A") == Fraction(9, 9 + 9 + 2 + 2)
    assert posterior(urn("3/5"), ["B", "A"], "D") == Fraction(2, 9 + 9 + 2 + 2)
    assert posterior(urn("3/5"), [], "C") == Fraction(1, 4)
    assert posterior(urn("1"), ["B"], "B") == 1
    with pytest.raises(ConfigError, match="cannot happen"):
        posterior(urn("1"), ["B", "A"], "A")


def test_actions_by_hand() -> None:
    # odds 7/10, cost 2/25: two letters that agree settle it, a letter alone or a draw does not
    cheap = urn("7/10", candidates=8, cost="2/25")
    states = [(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0)]
    assert [state_value(cheap, counts).action for counts in states] == ["explore", "explore", "submit", "explore"]
    assert state_value(urn("9/10", candidates=8, cost="2/25"), (1, 0, 0, 0)).action == "submit"
    assert state_value(cheap, (8, 0, 0, 0)).explore is None


def test_submit_wins_a_tie_and_the_smaller_fixed_number_too() -> None:
    free = urn("1/2", cost="0", candidates=2)
    assert state_value(free, (1, 0, 0, 0)).action == "submit"  # the second of two draws changes nothing
    assert best_fixed([free]).num_explores == 1


def test_the_best_fixed_number_is_one_number_for_all_questions() -> None:
    sure, hopeless = urn("1", cost="1/4"), urn("3/10", cost="1/4")
    #                      n=0   n=1                       alone: sure takes 1, hopeless 0
    assert best_fixed([sure, hopeless]) == (1, Fraction(1, 2) * (Fraction(3, 4) + Fraction(1, 20)))
    assert best_fixed([hopeless]).num_explores == 0


def test_the_optimum_is_what_its_own_policy_earns_in_simulation() -> None:
    rows = make_rows(UrnConfig(), 4000, seed=5, id_prefix="mc")
    earned, expected = [], []
    for row in rows:
        problem = urn_of(row, per_dollar=Decimal("0.1"), per_explore=Decimal(0))
        revealed: list[str] = []
        counts: tuple[int, ...] = (0, 0, 0, 0)
        while state_value(problem, counts).action == "explore":
            revealed.append(row.candidates[len(revealed)].answer)
            counts = tuple(sorted((Counter(revealed)[letter] for letter in "ABCD"), reverse=True))
        letter = plurality_letter(revealed) if revealed else "A"
        earned.append((letter == row.ground_truth) - float(problem.cost) * len(revealed))
        expected.append(optimal_value(problem))
    # 4,000 questions of standard deviation about 0.45: standard error 0.007
    assert sum(earned) / len(earned) == pytest.approx(float(mean_value(expected)), abs=0.02)


def test_draws_are_right_with_the_odds_and_wrong_letters_are_uniform() -> None:
    config = UrnConfig(odds=(Decimal("0.7"),))
    rows = make_rows(config, 3000, seed=1, id_prefix="x")
    draws = Counter(
        "right" if candidate.is_correct else (ord(candidate.answer) - ord(row.ground_truth)) % 4
        for row in rows
        for candidate in row.candidates
    )
    # 24,000 draws: 16,800 right and 2,400 of each wrong letter, standard deviations 71 and 46
    assert draws["right"] == pytest.approx(16800, abs=300)
    assert [draws[shift] for shift in (1, 2, 3)] == [pytest.approx(2400, abs=200)] * 3
    assert Counter(row.ground_truth for row in rows) == {letter: pytest.approx(750, abs=110) for letter in "ABCD"}


def test_rows_are_the_same_for_the_same_seed_and_do_not_depend_on_how_many_are_made() -> None:
    ten = make_rows(UrnConfig(), 10, seed=3, id_prefix="train-")
    assert make_rows(UrnConfig(), 4, seed=3, id_prefix="train-") == ten[:4]
    assert make_rows(UrnConfig(), 4, seed=4, id_prefix="train-") != ten[:4]
    assert ten[7].question_id == "train-000007"


def test_a_row_shows_its_odds_and_hides_its_letter() -> None:
    row = make_rows(UrnConfig(), 1, seed=0, id_prefix="q")[0]
    assert row.question == f"odds {row.facts['odds']}"
    assert [candidate.is_correct for candidate in row.candidates] == [
        candidate.answer == row.ground_truth for candidate in row.candidates
    ]
    assert len(row.candidates) == row.max_explores == 8


def test_plurality_takes_the_letter_seen_first_of_those_that_tie() -> None:
    assert plurality_letter(["B", "A", "A", "B", "C"]) == "B"
    assert plurality_letter(["B", "A", "A"]) == "A"
    with pytest.raises(DataError, match="no draws"):
        plurality_letter([])


def test_the_default_task_rewards_stopping_early() -> None:
    problems = [urn(odds, candidates=8, cost="2/25") for odds in ("26/100", "7/10", "9/10")]
    fixed = [round(float(mean_value([fixed_value(each, num) for each in problems])), 3) for num in range(9)]
    #                0      1     2     3      4     5      6      7      8 explores
    assert fixed == [0.25, 0.54, 0.46, 0.449, 0.39, 0.324, 0.254, 0.182, 0.106]
    late = mean_value([stopping_value(each, {5: 1, 6: 1, 7: 1, 8: 1}) for each in problems])
    optimum = mean_value([optimal_value(each) for each in problems])
    assert (round(float(optimum), 3), round(float(late), 3)) == (0.582, 0.217)
    default = UrnConfig()
    assert {str(odds) for odds in default.odds} == {"0.26", "0.7", "0.9"}
    assert default.cost_usd * Decimal("0.1") == Decimal("0.08")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("odds", (Decimal("0.25"),), "urn.odds must be Decimals in"),
        ("odds", (), "urn.odds must hold one or more"),
        ("odds", (0.5,), "urn.odds must be Decimals in"),
        ("cost_usd", Decimal("NaN"), "urn.cost_usd must be a finite Decimal"),
        ("cost_usd", Decimal("-1"), "urn.cost_usd must be a finite Decimal"),
        ("num_candidates", 9, "urn.num_candidates must lie in 1..8, got 9"),
        ("letters", ("A", "A"), "urn.letters must be at least two different"),
        ("letters", ("A", "B", "C", "E"), "urn.letters .* match them"),
    ],
)
def test_a_config_that_cannot_be_meant_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        UrnConfig(**{field: value})


def test_rows_of_other_tasks_have_no_urn_value() -> None:
    row = make_rows(UrnConfig(), 1, seed=0, id_prefix="q")[0].model_copy(update={"facts": {}})
    with pytest.raises(DataError, match="tell no odds"):
        urn_of(row, per_dollar=Decimal("0.1"), per_explore=Decimal(0))


def test_simulated_blind_stopping_earns_its_exact_value() -> None:
    rng = random.Random(0)
    rows = make_rows(UrnConfig(), 4000, seed=9, id_prefix="mc")
    problems = [urn_of(row, per_dollar=Decimal("0.1"), per_explore=Decimal(0)) for row in rows]
    earned = 0.0
    for row in rows:
        stop = rng.randint(5, 8)
        letter = plurality_letter([candidate.answer for candidate in row.candidates[:stop]])
        earned += (letter == row.ground_truth) - 0.08 * stop
    exact = mean_value([stopping_value(problem, {5: 1, 6: 1, 7: 1, 8: 1}) for problem in problems])
    assert earned / len(rows) == pytest.approx(float(exact), abs=0.02)
