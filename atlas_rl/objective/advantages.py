"""Generalised advantage estimation over the sampled tokens, and whitening over the policy's.

Shape suffixes: B = rows of the batch, T = response tokens.
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
    """What the critic learns: raw advantage plus value."""


@torch.no_grad()
def gae(token_rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float) -> Advantages:
    """Estimate advantages as if the sampled tokens stood side by side.

    An observation costs no discount step, ends no credit, and neither its values nor its rewards are read.

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
    if not token_rewards_BT.shape == values_BT.shape == mask_BT.shape or mask_BT.dim() != 2:
        raise TrainingError(
            f"rewards {tuple(token_rewards_BT.shape)}, values {tuple(values_BT.shape)} and mask {tuple(mask_BT.shape)} "
            "must share one shape [B, T]"
        )
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


def _refuse_lost_rewards(token_rewards_BT: Tensor, is_sampled_BT: Tensor) -> None:
    lost = ((token_rewards_BT != 0) & ~is_sampled_BT).nonzero()
    if lost.numel():
        row, offset = (int(index) for index in lost[0])
        raise RewardError(
            f"reward {float(token_rewards_BT[row, offset])} of row {row} sits on token {offset}, which was not sampled "
            "and would lose it; place it on the last sampled token of its action"
        )
