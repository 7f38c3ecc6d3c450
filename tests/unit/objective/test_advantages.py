import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from atlas_rl.errors import RewardError, TrainingError
from atlas_rl.objective.advantages import gae, whiten

Array = npt.NDArray[np.float64]
GARBAGE = [9.0, -1e30, math.nan, math.inf]


def compacted_gae(rewards: Array, values: Array, mask: Array, gamma: float, lam: float) -> tuple[Array, Array]:
    """Cut the observations out, then sum discounted TD errors forwards by definition, then put the gaps back."""
    advantages, returns = np.zeros_like(values), np.zeros_like(values)
    for b in range(len(mask)):
        sampled = np.flatnonzero(mask[b])
        r, v = rewards[b, sampled], np.append(values[b, sampled], 0.0)
        td = r + gamma * v[1:] - v[:-1]
        for i, t in enumerate(sampled):
            advantages[b, t] = sum((gamma * lam) ** n * td[i + n] for n in range(len(td) - i))
            returns[b, t] = advantages[b, t] + v[i]
    return advantages, returns


@pytest.mark.parametrize("garbage", GARBAGE)
def test_credit_crosses_an_observation_whose_values_do_not_leak(garbage: float) -> None:
    mask = torch.tensor([[1, 1, 0, 0, 1, 1]])
    rewards = torch.tensor([[0, -0.1, 0, 0, 0, 1.0]])
    values = torch.tensor([[0.5, 0.4, garbage, garbage, 0.3, 0.2]])
    raw, returns = gae(rewards, values, mask, gamma=1.0, lam=1.0)
    #                                                a1   a1   obs  obs  a2   a2
    torch.testing.assert_close(raw, torch.tensor([[0.4, 0.5, 0.0, 0.0, 0.7, 0.8]]))
    torch.testing.assert_close(returns, torch.tensor([[0.9, 0.9, 0.0, 0.0, 1.0, 1.0]]))
    raw, _ = gae(rewards, values, mask, gamma=1.0, lam=0.95)
    torch.testing.assert_close(raw, torch.tensor([[0.30565, 0.427, 0.0, 0.0, 0.66, 0.8]]))


def test_an_observation_costs_no_discount_step_and_resets_nothing() -> None:
    _, returns = gae(torch.tensor([[0, 0, 1.0]]), torch.zeros(1, 3), torch.tensor([[1, 0, 1]]), gamma=0.5, lam=1.0)
    #                              a    obs  a
    assert returns.tolist() == [[0.5, 0.0, 1.0]]


def test_a_row_without_sampled_tokens_changes_nothing() -> None:
    mask = torch.tensor([[0, 0, 0], [1, 1, 1]])
    rewards, values = torch.tensor([[0, 0, 0], [0, 0, 1.0]]), torch.tensor([[7.0, 7, 7], [0, 0, 0]])
    raw, returns = gae(rewards, values, mask, gamma=1.0, lam=1.0)
    assert raw.tolist() == returns.tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    assert whiten(raw, mask).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("garbage", GARBAGE)
def test_gae_equals_an_independent_sum_over_the_sampled_tokens(garbage: float) -> None:
    draw = np.random.default_rng(7)
    for gamma, lam in ((1.0, 1.0), (1.0, 0.95), (0.9, 0.8), (0.99, 0.0), (0.0, 1.0)):
        mask = (draw.random((6, 40)) < 0.6).astype(np.float64)
        mask[0] = 0
        rewards, values = draw.normal(size=mask.shape) * mask, draw.normal(size=mask.shape)
        raw, returns = compacted_gae(rewards, values, mask, gamma, lam)
        values[mask == 0] = garbage
        found = gae(torch.from_numpy(rewards), torch.from_numpy(values), torch.from_numpy(mask), gamma=gamma, lam=lam)
        np.testing.assert_allclose(found.raw_BT.numpy(), raw, atol=1e-12)
        np.testing.assert_allclose(found.returns_BT.numpy(), returns, atol=1e-12)


def test_a_reward_on_an_unsampled_token_is_refused_because_it_would_be_lost() -> None:
    with pytest.raises(RewardError, match=r"reward 0.5 of row 1 sits on token 2, which was not sampled"):
        gae(
            torch.tensor([[0, 1.0, 0], [0, 1.0, 0.5]]), torch.zeros(2, 3), torch.tensor([[1, 1, 0]] * 2),
            gamma=1.0, lam=1.0,
        )  # fmt: skip


def test_shapes_and_ranges_are_checked() -> None:
    zeros = torch.zeros(2, 3)
    with pytest.raises(TrainingError, match="must share one shape"):
        gae(zeros, zeros[:, :2], zeros, gamma=1.0, lam=1.0)
    with pytest.raises(TrainingError, match="must share one shape"):
        gae(zeros[0], zeros[0], zeros[0], gamma=1.0, lam=1.0)
    with pytest.raises(TrainingError, match=r"gamma=1\.5"):
        gae(zeros, zeros, zeros, gamma=1.5, lam=1.0)
    with pytest.raises(TrainingError, match="must share one shape"):
        whiten(zeros, zeros[:1])


def test_an_empty_batch_stays_empty() -> None:
    for shape in ((0, 4), (2, 0)):
        raw, returns = gae(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape), gamma=1.0, lam=1.0)
        assert raw.shape == returns.shape == whiten(raw, torch.zeros(shape)).shape == shape


@pytest.mark.parametrize("garbage", [*GARBAGE, 50.0, 0.0])
def test_whitening_reads_masked_tokens_alone(garbage: float) -> None:
    advantages = torch.tensor([[1, 1, garbage, 1], [-1, -1, garbage, garbage]])
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 0]])
    good, bad = 0.730297, -1.095445
    torch.testing.assert_close(
        whiten(advantages, mask), torch.tensor([[good, good, 0, good], [bad, bad, 0, 0]]), atol=1e-6, rtol=0
    )


def test_whitened_advantages_have_mean_0_and_unbiased_variance_1() -> None:
    torch.manual_seed(3)
    advantages, mask = torch.randn(8, 50) * 30 + 1000, torch.rand(8, 50) < 0.4
    chosen = whiten(advantages, mask)[mask].double()
    assert float(chosen.mean()) == pytest.approx(0, abs=1e-6)
    assert float(chosen.var(correction=1)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_too_few_tokens_for_a_variance_whiten_to_0(num_tokens: int) -> None:
    mask = torch.zeros(2, 2)
    mask[0, :num_tokens] = 1
    assert whiten(torch.full((2, 2), 5.0), mask).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("same", [0.1, 1e6, -3.0])
def test_equal_advantages_whiten_to_0(same: float) -> None:
    assert whiten(torch.full((3, 7), same), torch.ones(3, 7)).abs().max() < 1e-5


def test_the_dtype_of_the_advantages_is_kept_and_they_are_not_written_to() -> None:
    advantages = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    before = advantages.clone()
    assert whiten(advantages, torch.ones(1, 3)).dtype == torch.float64
    assert torch.equal(advantages, before)
