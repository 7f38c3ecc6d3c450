"""Every preset with every kind of potential on random episodes: the sum of what is placed is the breakdown, exactly."""

import random
from decimal import Decimal
from fractions import Fraction
from math import fsum
from pathlib import Path
from typing import NamedTuple

import pytest
import record_builders
from potential_tables import Key, random_table
from reward_episodes import CORRECT, NO_ANSWER, WRONG, Table, episode, explore, submit, talk

from atlas_rl.errors import RewardError
from atlas_rl.records.episode import Episode
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.rewards.config import Preset, RewardConfig
from atlas_rl.rewards.invariants import RowErrors, mapped_slots_minus_events, mapping_sum_error, row_errors
from atlas_rl.rewards.placement import place, reward_score, token_rewards
from atlas_rl.rewards.potentials import BUILT_IN, Potential, compose
from atlas_rl.rewards.recorded_potential import RecordedPotential, of_record, with_values
from atlas_rl.rewards.score import Scored, score

NOTHING_WRONG = RowErrors(mapping_sum_error=0.0, decomposition_error=0.0, mapped_slots_minus_events=0)
NUM_EPISODES = 60
PRICES = {Preset.CUSTOM: {"per_explore": Decimal("0.0307"), "per_dollar": Decimal("1.7")}}
PARTS = {
    "zero": (("zero", Decimal(1)),),
    "table": (("table", Decimal(1)),),
    "recorded": (("recorded", Decimal("0.3")),),
    "all": (("table", Decimal("0.7")), ("zero", Decimal(5)), ("recorded", Decimal("-1.1"))),
}


class Told(NamedTuple):
    """One random row."""

    episode: Episode
    grade: Grade
    recorded: tuple[float, ...]


def random_rows(seed: int) -> list[Told]:
    """Episodes of every length and ending, turns of two tokens or more."""
    rng = random.Random(f"rows {seed}")
    rows = []
    for number in range(NUM_EPISODES):
        turns = [
            explore(rng.randint(2, 9), shows=rng.randint(1, 5), cost=str(Decimal(rng.randint(0, 99999)) / 1000000))
            for _ in range(rng.randint(0, 8))
        ]
        reason, end = rng.choice(
            [
                (TerminalReason.SUBMITTED, submit(rng.randint(2, 9))),
                (TerminalReason.LENGTH, talk(rng.randint(2, 9))),
                (TerminalReason.MAX_TURNS, None),
                (TerminalReason.INFRASTRUCTURE_ERROR, talk(2)),
            ]
        )
        whole = [*turns, *([end] if end else [])] or [talk(2)]
        names = {"question_id": f"q{number}", "uid": f"u{number}", "candidate_fingerprint": f"f{number}"}
        told = episode(*whole, reason=reason, **names)
        grade = rng.choice([CORRECT, WRONG]) if told.submit_executed else NO_ANSWER
        rows.append(Told(told, grade, tuple(rng.uniform(-1, 1) for _ in range(9))))
    return rows


def keys(rows: list[Told]) -> list[Key]:
    return [(row.episode.question_id, row.episode.permutation_id, row.episode.candidate_fingerprint) for row in rows]


def scored_rows(tmp_path: Path, preset: Preset, parts: str, seed: int) -> list[tuple[Scored, Episode]]:
    rows = random_rows(seed)
    table = random_table(tmp_path / "t.parquet", keys(rows), 9, seed)
    config = RewardConfig(
        preset=preset, potentials=PARTS[parts], format_score=Decimal("0.07"), overlong_penalty=Decimal("0.3"),
        overlong_from_tokens=40, **PRICES.get(preset, {}),
    )  # fmt: skip
    whole = compose(PARTS[parts], {**BUILT_IN, "table": table, "recorded": RecordedPotential("recorded")})
    return [(_score(row, config, whole), row.episode) for row in rows]


def _score(row: Told, config: RewardConfig, whole: Potential) -> Scored:
    fingerprint = row.episode.candidate_fingerprint
    extra = with_values({}, "recorded", row.recorded, candidate_fingerprint=fingerprint, source="weights-1")
    return score(row.episode, row.grade, config=config, potential=of_record(whole, extra))


@pytest.mark.parametrize("parts", list(PARTS))
@pytest.mark.parametrize("preset", list(Preset))
def test_what_is_placed_is_the_breakdown_with_every_invariant_exactly_0(
    tmp_path: Path, preset: Preset, parts: str
) -> None:
    for scored, told in scored_rows(tmp_path, preset, parts, seed=list(Preset).index(preset)):
        assert row_errors(scored, told) == NOTHING_WRONG
        placed = place(scored)
        assert fsum(token_rewards(placed, told.response_tokens)) == reward_score(placed)
        whole = sum((Fraction(slot.exact) for slot in scored.slots), Fraction(0))
        assert float(whole) == scored.breakdown.training_reward


@pytest.mark.parametrize("parts", list(PARTS))
def test_a_placement_one_token_early_makes_the_invariants_non_zero(tmp_path: Path, parts: str) -> None:
    seen = 0
    for scored, told in scored_rows(tmp_path, Preset.BOTH, parts, seed=9):
        early = scored._replace(slots=tuple(slot._replace(offset=slot.offset - 1) for slot in scored.slots))
        placed = place(early)
        slots = mapped_slots_minus_events(placed, told)
        assert slots == -len(scored.slots)
        rewards = token_rewards(placed, told.response_tokens)
        if any(slot.exact for slot in scored.slots):
            assert mapping_sum_error(rewards, scored.breakdown, told) > 0
            seen += 1
    assert seen > NUM_EPISODES / 2


def test_a_stored_trajectory_is_shaped_by_its_own_question(tmp_path: Path) -> None:
    stored = record_builders.trajectory(question_id="q7", explores=2)
    key = (stored.question_id, stored.permutation_id, stored.candidate_fingerprint)
    table = random_table(tmp_path / "t.parquet", [("q0", "p0", "f" * 64), key], 9, seed=3)
    config = RewardConfig(potentials=PARTS["table"])
    scored = score(stored.episode, stored.grade, config=config, potential=compose(PARTS["table"], {"table": table}))
    assert row_errors(scored, stored.episode) == NOTHING_WRONG
    assert scored.breakdown.potential_stop == float(table.value(*key, 2))


@pytest.mark.parametrize(
    ("key", "num_prefixes", "said"),
    [
        (("q1", "p1", "other"), 9, "has question 'q1', permutation 'p1' with candidate_fingerprint=other, not f1"),
        (("q2", "p1", "f1"), 9, "has no question 'q1', permutation 'p1', prefix 0"),
        (("q1", "p1", "f1"), 2, "has prefixes 0..1 of question 'q1', permutation 'p1', not 2"),
    ],
)
def test_a_table_that_does_not_fit_is_an_error_that_names_the_trajectory_and_the_field(
    tmp_path: Path, key: Key, num_prefixes: int, said: str
) -> None:
    potential = compose(PARTS["table"], {"table": random_table(tmp_path / "t.parquet", [key], num_prefixes, seed=1)})
    told = episode(explore(), explore(), submit())
    with pytest.raises(RewardError) as caught:
        score(told, CORRECT, config=RewardConfig(potentials=PARTS["table"]), potential=potential)
    assert str(caught.value).startswith(f"episode u1_0: reward.potentials.table: {tmp_path}/t.parquet {said}")


@pytest.mark.parametrize(
    ("value", "weight", "said"),
    [
        (float("nan"), "1", "reward.potentials.table: potential of question 'q1', permutation 'p1', prefix 0 is nan"),
        (float("-inf"), "1", "reward.potentials.table: potential of question 'q1', permutation 'p1', prefix 0 is -inf"),
        (1.0, "1e400", "reward.potentials of prefix 0 add up beyond float32; lower the weights"),
    ],
)
def test_a_potential_that_is_no_reward_names_the_trajectory_and_the_field(value: float, weight: str, said: str) -> None:
    parts = (("table", Decimal(weight)),)
    potential = compose(parts, {"table": Table((value,) * 9)})
    with pytest.raises(RewardError) as caught:
        score(episode(submit()), CORRECT, config=RewardConfig(potentials=parts), potential=potential)
    assert str(caught.value).startswith(f"episode u1_0: {said}")


@pytest.mark.parametrize("cost", ["NaN", "Infinity"])
@pytest.mark.parametrize("parts", [(), PARTS["zero"]])
def test_a_cost_that_is_no_money_names_the_trajectory_and_the_field(
    cost: str, parts: tuple[tuple[str, Decimal], ...]
) -> None:
    good = episode(explore(), submit())
    broken = good.events[0].model_copy(update={"charged_cost_usd": Decimal(cost)})
    with pytest.raises(RewardError) as caught:
        score(
            good.model_copy(update={"events": (broken, good.events[1])}),
            CORRECT, config=RewardConfig(potentials=parts), potential=compose(parts),
        )  # fmt: skip
    assert str(caught.value).startswith(f"episode u1_0: charged_cost_usd={cost} of event 0 is no amount of money")


def test_a_reward_beyond_float32_is_refused_with_the_trajectory() -> None:
    config = RewardConfig(preset=Preset.CUSTOM, per_explore=Decimal("1e400"), per_dollar=Decimal(0))
    with pytest.raises(RewardError, match=r"^episode u1_0: "):
        score(episode(explore(), submit()), CORRECT, config=config)
