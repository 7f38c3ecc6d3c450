import pytest
import torch
from verl.trainer.ppo.core_algos import compute_gae_advantage_return

from atlas_rl.objective.advantages import gae, whiten


def random_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    mask = (torch.rand(16, 120, generator=draw) < 0.5).float()
    mask[3] = 0
    rewards = torch.randn(16, 120, generator=draw) * mask
    return rewards, torch.randn(16, 120, generator=draw), mask


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.99, 0.9)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_on_sampled_tokens_advantages_and_returns_are_those_of_verl(seed: int, gamma: float, lam: float) -> None:
    rewards, values, mask = random_batch(seed)
    whitened, returns = compute_gae_advantage_return(rewards, values, mask, gamma, lam)
    ours = gae(rewards, values, mask, gamma=gamma, lam=lam)
    sampled = mask.bool()
    assert torch.equal(ours.returns_BT[sampled], returns[sampled])
    torch.testing.assert_close(whiten(ours.raw_BT, mask)[sampled], whitened[sampled], atol=1e-5, rtol=1e-5)


def test_verl_loses_the_reward_that_we_refuse() -> None:
    mask, values = torch.tensor([[1.0, 1.0, 0.0]]), torch.zeros(1, 3)
    lost, _ = compute_gae_advantage_return(torch.tensor([[0.0, 0.0, 1.0]]), values, mask, 1.0, 1.0)
    assert lost[0, :2].tolist() == [0.0, 0.0]
