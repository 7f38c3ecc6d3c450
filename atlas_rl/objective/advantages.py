"""Generalised advantage estimation over sampled tokens or over actions, and whitening over the policy's tokens.

Shape suffixes: B = rows of the batch, T = response tokens, K = actions of the row with the most.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from atlas_rl.errors import RewardError, TrainingError

VARIANCE_FLOOR = 1e-8
"""Added to the variance before the root, so that equal advantages whiten to 0."""


class Advantages(NamedTuple):
    """Both are 0 on unsampled tokens."""

    raw_BT: Tensor
    """Advantages before whitening."""
    returns_BT: Tensor
    """Raw advantage plus value: what the critic learns of the tokens whose value was read."""


@torch.no_grad()
def gae(token_rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float) -> Advantages:
    """Estimate advantages as if the sampled tokens stood side by side.

    An observation costs no discount step, ends no credit, and neither its values nor its rewards are read. With
    delta_t = r_t + gamma V_t+1 - V_t and V = 0 behind the last sampled token, A_t is the sum over l of
    (gamma lam)^l delta_t+l: equation 16 of Schulman et al., "High-Dimensional Continuous Control Using Generalized
    Advantage Estimation" (arXiv 1506.02438), which stops where the row ends.

    Args:
        token_rewards_BT: 0 on every unsampled token.
        values_BT: worth of the state before each token; anything at all on unsampled tokens.
        mask_BT: 1 or True exactly on sampled tokens.
        gamma: discount per sampled token, in [0, 1].
        lam: decay of the trace per sampled token, in [0, 1].

    Raises:
        RewardError: a reward sits on an unsampled token, where it would be lost.
        TrainingError: shapes differ, or gamma or lam is out of range.
    """
    _require_one_shape(token_rewards_BT, values_BT, mask_BT)
    if not 0 <= gamma <= 1 or not 0 <= lam <= 1:
        raise TrainingError(f"gamma={gamma} and lam={lam} must lie in [0, 1]")
    is_sampled_BT = mask_BT.bool()
    _refuse_lost_rewards(token_rewards_BT, is_sampled_BT)
    next_value_B = values_BT.new_zeros(values_BT.shape[0])
    advantage_B = torch.zeros_like(next_value_B)
    raw_BT = torch.zeros_like(values_BT)
    for t in reversed(range(values_BT.shape[1])):
        is_sampled_B = is_sampled_BT[:, t]
        delta_B = token_rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = torch.where(is_sampled_B, delta_B + gamma * lam * advantage_B, advantage_B)
        next_value_B = torch.where(is_sampled_B, values_BT[:, t], next_value_B)
        raw_BT[:, t] = torch.where(is_sampled_B, advantage_B, 0.0)
    returns_BT = torch.where(is_sampled_BT, raw_BT + values_BT, 0.0)
    return Advantages(raw_BT=raw_BT, returns_BT=returns_BT)


@torch.no_grad()
def turn_gae(token_rewards_BT: Tensor, values_BT: Tensor, action_BT: Tensor, gamma: float, lam: float) -> Advantages:
    """Estimate one advantage for each action: the same sum as ``gae``, a whole turn being one step of it.

    The state of action k is the prefix before its first sampled token, so V_k is the value there; r_k is the plain sum
    of the rewards on its tokens, and the state after the last action is worth 0. All tokens of an action get its
    advantage A_k and its return G_k = A_k + V_k = r_k + gamma ((1 - lam) V_k+1 + lam G_k+1).

    A turn as the action and the whole history as the state is the decision process of Turn-PPO (Li et al., arXiv
    2512.17008); the advantage is equation 16 of arXiv 1506.02438 in it. Its critic is a function of states, so it
    learns G_k at ``first_tokens`` and nowhere else.

    Args:
        token_rewards_BT: 0 on every unsampled token.
        values_BT: worth of the state before each token; anything at all where no action starts.
        action_BT: int64, the action's place in the row from 0 on its sampled tokens, -1 on all others; ascending.
        gamma: discount per action, in [0, 1].
        lam: decay of the trace per action, in [0, 1].

    Raises:
        RewardError: a reward sits on an unsampled token, where it would be lost.
        TrainingError: shapes differ, or gamma or lam is out of range.
    """
    _require_one_shape(token_rewards_BT, values_BT, action_BT)
    is_sampled_BT = action_BT >= 0
    _refuse_lost_rewards(token_rewards_BT, is_sampled_BT)
    is_first_BT = first_tokens(action_BT)
    place_BT = action_BT.clamp(min=0)
    num_actions = 1 + int(place_BT.max()) if place_BT.numel() else 1

    def by_action(tensor_BT: Tensor, chosen_BT: Tensor) -> Tensor:
        empty_BK = tensor_BT.new_zeros(tensor_BT.shape[0], num_actions)
        return empty_BK.scatter_add(1, place_BT, torch.where(chosen_BT, tensor_BT, 0))

    found = gae(
        by_action(token_rewards_BT, is_sampled_BT),
        by_action(values_BT, is_first_BT),
        by_action(is_first_BT.long(), is_first_BT),
        gamma,
        lam,
    )
    raw_BT, returns_BT = (
        torch.where(is_sampled_BT, tensor_BK.gather(1, place_BT), 0.0) for tensor_BK in (found.raw_BT, found.returns_BT)
    )
    return Advantages(raw_BT=raw_BT, returns_BT=returns_BT)


def first_tokens(action_BT: Tensor) -> Tensor:
    """[B, T] bool, true on the first token of each action.

    Args:
        action_BT: As in ``turn_gae``.
    """
    before_BT = torch.nn.functional.pad(action_BT, (1, 0), value=-1)[:, :-1]
    return (action_BT >= 0) & (action_BT != before_BT)


@torch.no_grad()
def whiten(advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Shift and scale to mean 0 and unbiased variance 1 over the masked tokens.

    Statistics are taken in float64 and from masked tokens alone. One masked token, having no variance, becomes 0.

    Args:
        advantages_BT: anything at all outside the mask.
        mask_BT: 1 or True on the policy's tokens.

    Returns:
        [B, T] in the dtype of ``advantages_BT``, 0 outside the mask.

    Raises:
        TrainingError: shapes differ.
    """
    if advantages_BT.shape != mask_BT.shape:
        raise TrainingError(
            f"advantages {tuple(advantages_BT.shape)} and mask {tuple(mask_BT.shape)} must share one shape"
        )
    is_policy_BT = mask_BT.bool()
    whitened_BT = torch.zeros_like(advantages_BT)
    chosen_N = advantages_BT[is_policy_BT].double()
    if chosen_N.numel() < 2:
        return whitened_BT
    scaled_N = (chosen_N - chosen_N.mean()) * torch.rsqrt(chosen_N.var(correction=1) + VARIANCE_FLOOR)
    whitened_BT[is_policy_BT] = scaled_N.to(advantages_BT.dtype)
    return whitened_BT


def _require_one_shape(token_rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor) -> None:
    if not token_rewards_BT.shape == values_BT.shape == mask_BT.shape or mask_BT.dim() != 2:
        raise TrainingError(
            f"rewards {tuple(token_rewards_BT.shape)}, values {tuple(values_BT.shape)} and mask {tuple(mask_BT.shape)} "
            "must share one shape [B, T]"
        )


def _refuse_lost_rewards(token_rewards_BT: Tensor, is_sampled_BT: Tensor) -> None:
    lost = ((token_rewards_BT != 0) & ~is_sampled_BT).nonzero()
    if lost.numel():
        row, offset = (int(index) for index in lost[0])
        raise RewardError(
            f"reward {float(token_rewards_BT[row, offset])} of row {row} sits on token {offset}, which was not sampled "
            "and would lose it; place it on the last sampled token of its action"
        )
