import json
from decimal import Decimal
from typing import Any

import pytest
from reward_episodes import CORRECT, Table, episode, explore, submit

from atlas_rl.errors import RewardError
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.potentials import BUILT_IN, ZERO, Potential, compose
from atlas_rl.rewards.recorded_potential import RecordedPotential, of_record, with_values
from atlas_rl.rewards.score import Scored, score

WEIGHTS = (("predictor", Decimal("0.5")), ("table", Decimal(1)))
CONFIG = RewardConfig(potentials=WEIGHTS)
TOLD = episode(explore(), submit())
FLAT = Table((0.25,) * 9)


def parts() -> Potential:
    return compose(WEIGHTS, {**BUILT_IN, "predictor": RecordedPotential("predictor"), "table": FLAT})


def recorded(*values: float, fingerprint: str = "f1") -> dict[str, Any]:
    return with_values({"subset": "s"}, "predictor", values, candidate_fingerprint=fingerprint, source="weights-7")


def scored(extra: dict[str, Any]) -> Scored:
    return score(TOLD, CORRECT, config=CONFIG, potential=of_record(parts(), extra))


def test_the_values_of_a_record_shape_its_reward() -> None:
    row = scored(recorded(0.5, 0.75)).breakdown
    #                          cost     change of the potential
    assert row.explore_reward_1 == -0.01 + 0.5 * 0.25
    assert row.terminal_reward == 1 - (0.5 * 0.75 + 0.25)
    assert row.potential_stop == 0.625


def test_values_come_back_from_json_with_the_same_bits() -> None:
    extra = recorded(0.1, 1 / 3)
    assert extra["subset"] == "s"
    again = json.loads(json.dumps(extra))
    assert again == extra
    assert scored(again) == scored(extra)


def test_a_sum_without_a_recorded_part_is_passed_through() -> None:
    frozen = compose((("table", Decimal(1)),), {"table": FLAT})
    assert of_record(frozen, {}) is frozen
    assert of_record(ZERO, {}) is ZERO


def test_a_record_gives_its_own_values_and_not_those_of_the_record_before() -> None:
    whole = parts()
    first = score(TOLD, CORRECT, config=CONFIG, potential=of_record(whole, recorded(0.5, 0.75)))
    second = score(TOLD, CORRECT, config=CONFIG, potential=of_record(whole, recorded(0.5, 0.25)))
    assert (first.breakdown.potential_stop, second.breakdown.potential_stop) == (0.625, 0.375)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({}, "extra.potentials.predictor is not in the record"),
        ({"potentials": {"other": {}}}, "extra.potentials.predictor is not in the record"),
        (recorded(0.5), "extra.potentials.predictor.values holds prefixes 0..0, not 1"),
        (recorded(0.5, 0.5, fingerprint="f9"), "candidate_fingerprint=f9, the episode has f1"),
        (
            {"potentials": {"predictor": {"candidate_fingerprint": "f1", "source": "w", "values": [0, float("nan")]}}},
            "extra.potentials.predictor: values.1: Input should be a finite number",
        ),
        (
            {"potentials": {"predictor": {"candidate_fingerprint": "f1", "source": "w", "values": []}}},
            "extra.potentials.predictor.values is empty",
        ),
    ],
)  # fmt: skip
def test_a_record_that_lacks_a_value_is_an_error_that_names_the_trajectory_and_the_field(
    extra: dict[str, Any], said: str
) -> None:
    with pytest.raises(RewardError) as caught:
        scored(extra)
    assert str(caught.value).startswith("episode u1_0: reward.potentials.predictor: ")
    assert said in str(caught.value)


def test_a_recorded_part_without_a_record_is_an_error() -> None:
    with pytest.raises(RewardError, match=r"extra\.potentials\.predictor of a record; pass of_record\(potential, ext"):
        score(TOLD, CORRECT, config=CONFIG, potential=parts())


@pytest.mark.parametrize("values", [(0.5, float("inf")), ()])
def test_values_that_no_reward_can_use_are_not_recorded(values: tuple[float, ...]) -> None:
    with pytest.raises(RewardError, match=r"extra\.potentials\.predictor"):
        recorded(*values)


def test_a_part_is_recorded_once() -> None:
    with pytest.raises(RewardError, match=r"extra\.potentials\.predictor is already recorded"):
        with_values(recorded(0.5), "predictor", [0.5], candidate_fingerprint="f1", source="weights-8")
