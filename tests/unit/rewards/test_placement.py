import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_episodes import CORRECT, NO_ANSWER, Table, episode, explore, shaped, submit

from atlas_rl.errors import RewardError
from atlas_rl.records.trajectory import PlacedReward
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.placement import float32_parts, place, reward_score, token_rewards
from atlas_rl.rewards.score import score

COST = float(np.float32(-0.01))


def test_each_reward_sits_on_the_last_sampled_token_of_its_own_action() -> None:
    told = episode(explore(3, shows=2), explore(1, shows=3), submit(2))
    placed = place(score(told, CORRECT, config=RewardConfig()))
    #                                     e    e    e     o    o    e     o    o    o    s    s
    assert token_rewards(placed, 11) == [0.0, 0.0, COST, 0.0, 0.0, COST, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert [entry.offset for entry in placed] == [2, 5, 10]


def test_the_score_of_a_row_is_the_exact_sum_of_its_float32_rewards() -> None:
    placed = place(score(episode(explore(), explore(), submit()), CORRECT, config=RewardConfig()))
    assert [entry.value for entry in placed] == [COST, COST, 1.0]
    assert reward_score(placed) == 0.980000000447034835815429688


def test_two_rewards_on_one_token_stay_apart_in_the_trace_and_add_up_exactly() -> None:
    dropped = episode(explore(2, shows=0), reason=TerminalReason.EXPLORE_OBSERVATION_DROPPED)
    placed = place(score(dropped, NO_ANSWER, config=shaped(), potential=Table((0.3, 0.9))))
    #                                                -0.01 + 0.6   -0.9
    assert [entry.offset for entry in placed] == [1, 1]
    assert [entry.value for entry in placed] == pytest.approx([0.59, -0.9], abs=6e-8)
    on_token = token_rewards(placed, 2)[1]
    assert on_token == float(np.float32(on_token)) == reward_score(placed)


def test_a_row_without_slots_has_no_rewards() -> None:
    fault = episode(explore(), reason=TerminalReason.INFRASTRUCTURE_ERROR)
    placed = place(score(fault, NO_ANSWER, config=RewardConfig()))
    assert placed == ()
    assert (token_rewards(placed, 5), reward_score(placed)) == ([0.0] * 5, 0.0)


@pytest.mark.parametrize("offset", [3, 4, 8])
def test_a_reward_on_a_token_that_was_not_sampled_is_refused(offset: int) -> None:
    scored = score(episode(explore(3, shows=2), submit(3)), CORRECT, config=RewardConfig())
    slid = scored._replace(slots=(scored.slots[0]._replace(offset=offset), scored.slots[1]))
    with pytest.raises(RewardError, match=f"on token {offset}, which was not sampled"):
        place(slid)


def test_a_reward_beyond_the_response_is_refused() -> None:
    with pytest.raises(RewardError, match="on token 5 of a response of 5 tokens"):
        token_rewards([PlacedReward(offset=5, value=1.0)], 5)


numbers = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


@given(st.lists(numbers, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_parts_of_a_token_and_their_sum_are_float32_and_near_what_they_stand_for(wanted: list[float]) -> None:
    parts = float32_parts(wanted)
    total = sum(parts)
    assert [float(np.float32(part)) for part in parts] == parts
    assert float(np.float32(total)) == total
    spacing = float(np.spacing(np.float32(max(map(abs, [*wanted, total])))))
    assert all(abs(part - value) <= 2 * spacing for part, value in zip(parts, wanted, strict=True))
