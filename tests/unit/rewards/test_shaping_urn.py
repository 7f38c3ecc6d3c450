"""Shaping leaves the best policy of the urn where it was: every deterministic policy, its value through ``score``."""

import random
from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from potential_tables import random_table
from reward_episodes import CORRECT, NO_ANSWER, WRONG, Turn, episode, explore, submit, talk

from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.rewards.config import Preset, RewardConfig
from atlas_rl.rewards.potentials import BUILT_IN, ZERO, Potential, compose
from atlas_rl.rewards.score import Scored, score
from atlas_rl.tasks.urn_values import Urn, optimal_value

ODDS, COST_USD = Fraction(7, 10), Decimal("0.3")
LETTERS = "AB"
GIVE_UP = "-"
"""Ends an episode without a submit: the row's terminal reward then sits on its last sampled token."""
Seen = str
"""Letters that were drawn so far, in order."""
Policy = Mapping[Seen, str]
"""What to end with after these letters; where it is silent, it explores."""


class World(NamedTuple):
    """One question: what is hidden and what the draws show. The policy knows neither."""

    hidden: str
    draws: str
    probability: Fraction

    @property
    def key(self) -> tuple[str, str, str]:
        """Question, permutation and fingerprint of its own: a potential may know what the policy cannot."""
        return (f"{self.hidden}-{self.draws}", "as_drawn", f"candidates {self.draws}")


def worlds(num_candidates: int) -> list[World]:
    """Enumerate the questions with their chance."""
    found = []
    for hidden, *draws in product(LETTERS, repeat=num_candidates + 1):
        probability = Fraction(1, len(LETTERS))
        for draw in draws:
            probability *= ODDS if draw == hidden else 1 - ODDS
        found.append(World(hidden, "".join(draws), probability))
    return found


def policies(num_candidates: int, ends: str, seen: Seen = "") -> Iterator[dict[Seen, str]]:
    """Enumerate what can be done from ``seen`` on."""
    for end in ends:
        yield {seen: end}
    if len(seen) < num_candidates:
        for after in product(*(list(policies(num_candidates, ends, seen + letter)) for letter in LETTERS)):
            yield {place: end for policy in after for place, end in policy.items()}


def played(world: World, num_explores: int, end: str, config: RewardConfig, potential: Potential) -> Scored:
    """Score the episode in which the policy explores so often in this world, then ends."""
    question_id, permutation_id, fingerprint = world.key
    draws = world.draws[:num_explores]
    turns: list[Turn] = [explore(cost=str(COST_USD), answer=letter, right=letter == world.hidden) for letter in draws]
    gives_up = end == GIVE_UP
    told = episode(
        *turns,
        talk() if gives_up else submit(answer=end),
        reason=TerminalReason.MAX_TURNS if gives_up else TerminalReason.SUBMITTED,
        question_id=question_id,
        permutation_id=permutation_id,
        candidate_fingerprint=fingerprint,
    )
    verdict = NO_ANSWER if gives_up else CORRECT if end == world.hidden else WRONG
    return score(told, verdict, config=config, potential=potential)


Rewards = dict[tuple[World, int, str], Fraction]


def reward_of_every_episode(num_candidates: int, ends: str, config: RewardConfig, potential: Potential) -> Rewards:
    """The exact sum of what is placed, by world, number of explores and end."""
    return {
        (world, num_explores, end): sum(
            (Fraction(slot.exact) for slot in played(world, num_explores, end, config, potential).slots), Fraction(0)
        )
        for world in worlds(num_candidates)
        for num_explores in range(num_candidates + 1)
        for end in ends
    }


def expected(policy: Policy, rewards: Rewards, num_candidates: int) -> Fraction:
    """The policy's exact expected reward over all questions."""
    total = Fraction(0)
    for world in worlds(num_candidates):
        num_explores = next(k for k in range(num_candidates + 1) if world.draws[:k] in policy)
        total += world.probability * rewards[world, num_explores, policy[world.draws[:num_explores]]]
    return total


def composed(tmp_path: Path, num_candidates: int, seed: int) -> tuple[RewardConfig, Potential]:
    """A preset, and two random tables with random weights, one of them negative."""
    rng = random.Random(f"weights {seed}")
    keys = [world.key for world in worlds(num_candidates)]
    tables = {
        name: random_table(tmp_path / f"{name}.parquet", keys, num_candidates + 1, seed=10 * seed + place)
        for place, name in enumerate(("high", "low"))
    }
    weights = (("high", Decimal(rng.randint(1, 300)) / 100), ("low", -Decimal(rng.randint(1, 100)) / 100))
    preset = list(Preset)[seed % 3]
    return RewardConfig(preset=preset, potentials=weights), compose(weights, {**BUILT_IN, **tables})


CASES = [(2, LETTERS + GIVE_UP, seed) for seed in range(6)] + [(3, LETTERS, 6), (3, LETTERS, 7), (3, LETTERS, 8)]


@pytest.mark.parametrize(("num_candidates", "ends", "seed"), CASES)
def test_shaping_lowers_every_policy_by_the_start_potential_and_so_changes_no_ranking(
    tmp_path: Path, num_candidates: int, ends: str, seed: int
) -> None:
    config, potential = composed(tmp_path, num_candidates, seed)
    plain = RewardConfig(preset=config.preset)
    objective = reward_of_every_episode(num_candidates, ends, plain, ZERO)
    training = reward_of_every_episode(num_candidates, ends, config, potential)
    every = list(policies(num_candidates, ends))
    assert len(every) == {(2, 3): 147, (3, 2): 1446}[num_candidates, len(ends)]
    by_objective = [expected(policy, objective, num_candidates) for policy in every]
    by_training = [expected(policy, training, num_candidates) for policy in every]
    start = sum(
        (world.probability * Fraction(potential.value(*world.key, 0)) for world in worlds(num_candidates)), Fraction(0)
    )
    assert start != 0
    assert {shaped - bare for shaped, bare in zip(by_training, by_objective, strict=True)} == {-start}
    prices = plain.objective_prices
    cost = Fraction(prices.penalty(1, COST_USD))
    urn = Urn(odds=ODDS, num_letters=2, num_candidates=num_candidates, cost=cost)
    assert max(by_objective) == optimal_value(urn)
    assert by_objective.index(max(by_objective)) == by_training.index(max(by_training))


def test_leaving_out_the_last_potential_would_change_the_best_policy(tmp_path: Path) -> None:
    num_candidates, ends = 2, LETTERS
    every = list(policies(num_candidates, ends))
    moved = 0
    for seed in range(6):
        config, potential = composed(tmp_path, num_candidates, seed)
        right, wrong = {}, {}
        for world, num_explores, end in product(worlds(num_candidates), range(num_candidates + 1), ends):
            slots = played(world, num_explores, end, config, potential).slots
            right[world, num_explores, end] = sum((Fraction(slot.exact) for slot in slots), Fraction(0))
            last = Fraction(potential.value(*world.key, num_explores))
            wrong[world, num_explores, end] = right[world, num_explores, end] + last
        best, other = (
            max(every, key=lambda policy, rewards=rewards: expected(policy, rewards, num_candidates))  # type: ignore[misc]
            for rewards in (right, wrong)
        )
        moved += best != other
    assert moved > 0
