"""Turn-level GAE against the definition: one step an action, its value read before its first token."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_rl.errors import RewardError, TrainingError
from atlas_rl.objective.advantages import first_tokens, gae, turn_gae
from atlas_rl.objective.inputs import action_of_token

Array = npt.NDArray[np.float64]
Spans = list[tuple[int, int]]

#            explore    observation  submit
ACTION = [[0, 0, 0, -1, -1, 1, 1]]
REWARDS = [[0.0, 0.0, -0.1, 0.0, 0.0, 0.0, 1.0]]
VALUES = [[0.5, 9.0, 9.0, 9.0, 9.0, 0.3, 9.0]]


def summed(rewards: Array, values: Array, spans: Spans, gamma: float, lam: float) -> tuple[Array, Array]:
    """[T] advantages and returns of one row, each action's sum over TD errors written out."""
    r = [rewards[start:end].sum() for start, end in spans]
    v = [values[start] for start, _ in spans] + [0.0]
    td = [r[k] + gamma * v[k + 1] - v[k] for k in range(len(spans))]
    advantages, returns = np.zeros_like(values), np.zeros_like(values)
    for k, (start, end) in enumerate(spans):
        advantages[start:end] = sum((gamma * lam) ** n * td[k + n] for n in range(len(spans) - k))
        returns[start:end] = advantages[start] + v[k]
    return advantages, returns


def test_a_row_computed_by_hand() -> None:
    raw, returns = turn_gae(torch.tensor(REWARDS), torch.tensor(VALUES), torch.tensor(ACTION), gamma=0.5, lam=0.8)
    # submit:   1.0 + 0 - 0.3 = 0.7, and its return 0.7 + 0.3 = 1.0
    # explore: -0.1 + 0.5 * 0.3 - 0.5 = -0.45, plus 0.5 * 0.8 * 0.7 = -0.17, and its return -0.17 + 0.5 = 0.33
    #                                              explore             obs       submit
    torch.testing.assert_close(raw, torch.tensor([[-0.17, -0.17, -0.17, 0.0, 0.0, 0.7, 0.7]]))
    torch.testing.assert_close(returns, torch.tensor([[0.33, 0.33, 0.33, 0.0, 0.0, 1.0, 1.0]]))


def test_the_critic_learns_where_its_value_was_read() -> None:
    assert first_tokens(torch.tensor(ACTION)).int().tolist() == [[1, 0, 0, 0, 0, 1, 0]]
    adjacent = torch.tensor([[-1, 0, 0, 1, 2, 2, -1]])
    assert first_tokens(adjacent).int().tolist() == [[0, 1, 0, 1, 1, 0, 0]]


@pytest.mark.parametrize("garbage", [-1e30, math.nan, math.inf])
def test_values_inside_an_action_and_between_actions_are_not_read(garbage: float) -> None:
    dirty = torch.tensor(VALUES)
    dirty[dirty == 9.0] = garbage
    clean = turn_gae(torch.tensor(REWARDS), torch.tensor(VALUES), torch.tensor(ACTION), gamma=0.9, lam=0.8)
    found = turn_gae(torch.tensor(REWARDS), dirty, torch.tensor(ACTION), gamma=0.9, lam=0.8)
    assert torch.equal(found.raw_BT, clean.raw_BT)
    assert torch.equal(found.returns_BT, clean.returns_BT)


@st.composite
def rows_of_actions(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Per row the (gap before, tokens) of each action; a gap may be 0 and a row empty."""
    action = st.tuples(st.integers(0, 3), st.integers(1, 4))
    return draw(st.lists(st.lists(action, max_size=5), min_size=1, max_size=4))


rates = st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0])


@given(rows_of_actions(), rates, rates, st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_both_levels_equal_the_sum_written_out(
    drawn: list[list[tuple[int, int]]], gamma: float, lam: float, seed: int
) -> None:
    spans: list[Spans] = []
    for actions in drawn:
        end, row = 0, []
        for gap, tokens in actions:
            row.append((end + gap, end + gap + tokens))
            end += gap + tokens
        spans.append(row)
    length = max((end for row in spans for _, end in row), default=1) + 1
    sampled = np.zeros((len(spans), length), dtype=bool)
    for b, row in enumerate(spans):
        for start, end in row:
            sampled[b, start:end] = True
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=sampled.shape) * sampled, rng.normal(size=sampled.shape)
    action = action_of_token([f"r{b}" for b in range(len(spans))], spans, torch.from_numpy(sampled))
    turns = turn_gae(torch.from_numpy(rewards), torch.from_numpy(values), action, gamma, lam)
    tokens = gae(torch.from_numpy(rewards), torch.from_numpy(values), torch.from_numpy(sampled), gamma, lam)
    for b, row in enumerate(spans):
        raw, returns = summed(rewards[b], values[b], row, gamma, lam)
        np.testing.assert_allclose(turns.raw_BT[b].numpy(), raw, atol=1e-12)
        np.testing.assert_allclose(turns.returns_BT[b].numpy(), returns, atol=1e-12)
        raw, returns = summed(rewards[b], values[b], [(t, t + 1) for t in np.flatnonzero(sampled[b])], gamma, lam)
        np.testing.assert_allclose(tokens.raw_BT[b].numpy(), raw, atol=1e-12)
        np.testing.assert_allclose(tokens.returns_BT[b].numpy(), returns, atol=1e-12)


def test_actions_of_one_token_are_tokens_to_the_bit() -> None:
    torch.manual_seed(0)
    sampled = torch.rand(5, 30) < 0.5
    action = torch.where(sampled, sampled.long().cumsum(dim=1) - 1, -1)
    rewards, values = torch.randn(5, 30) * sampled, torch.randn(5, 30)
    by_turn, by_token = turn_gae(rewards, values, action, 0.9, 0.7), gae(rewards, values, sampled, 0.9, 0.7)
    assert torch.equal(by_turn.raw_BT, by_token.raw_BT)
    assert torch.equal(by_turn.returns_BT, by_token.returns_BT)


def test_without_discount_and_decay_the_levels_differ_by_values_inside_the_action_alone() -> None:
    rewards, values, action = torch.tensor(REWARDS), torch.tensor(VALUES), torch.tensor(ACTION)
    by_turn, by_token = turn_gae(rewards, values, action, 1.0, 1.0), gae(rewards, values, action >= 0, 1.0, 1.0)
    first = first_tokens(action)
    torch.testing.assert_close(by_turn.raw_BT[first], by_token.raw_BT[first])
    # What is left to come is one number for all tokens of an action that is paid on its last.
    torch.testing.assert_close(by_turn.returns_BT, by_token.returns_BT)


def test_several_rewards_of_one_action_add_up() -> None:
    raw, _ = turn_gae(
        torch.tensor([[0.25, 0.5, 0.25]]), torch.zeros(1, 3), torch.tensor([[0, 0, 0]]), gamma=0.5, lam=0.5
    )
    assert raw.tolist() == [[1.0, 1.0, 1.0]]


def test_rows_without_an_action_and_empty_batches_stay_zero() -> None:
    raw, returns = turn_gae(torch.zeros(2, 2), torch.full((2, 2), 7.0), torch.full((2, 2), -1), 1.0, 1.0)
    assert raw.tolist() == returns.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    for shape in ((0, 4), (2, 0)):
        found = turn_gae(torch.zeros(shape), torch.zeros(shape), torch.full(shape, -1), 1.0, 1.0)
        assert found.raw_BT.shape == found.returns_BT.shape == shape


def test_what_gae_refuses_is_refused_at_turn_level_too() -> None:
    zeros = torch.zeros(1, 3)
    with pytest.raises(RewardError, match=r"reward 0\.5 of row 0 sits on token 1, which was not sampled"):
        turn_gae(torch.tensor([[0, 0.5, 0]]), zeros, torch.tensor([[0, -1, 1]]), 1.0, 1.0)
    with pytest.raises(TrainingError, match="must share one shape"):
        turn_gae(zeros, zeros[:, :2], zeros.long(), 1.0, 1.0)
    with pytest.raises(TrainingError, match=r"lam=1\.5"):
        turn_gae(zeros, zeros, zeros.long(), 1.0, 1.5)
