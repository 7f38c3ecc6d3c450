"""Figures of masks and advantages of one batch.

Shape suffixes: B = rows of the batch, T = response tokens.
"""

import torch
from torch import Tensor

from atlas_rl.objective.masks import policy_mask


@torch.no_grad()
def advantage_metrics(raw_BT: Tensor, whitened_BT: Tensor, policy_mask_BT: Tensor) -> dict[str, float]:
    """Mean of the raw and unbiased variance of the whitened advantages over the policy's tokens.

    The variance is 1 after whitening, or 0 where all raw advantages are equal. A figure without enough tokens to be
    defined (one for the mean, two for the variance) has no key.
    """
    is_policy_BT = policy_mask_BT.bool()
    raw_N, whitened_N = raw_BT[is_policy_BT].double(), whitened_BT[is_policy_BT].double()
    metrics = {}
    if raw_N.numel() >= 1:
        metrics["adv/raw_mean_policy_mask"] = float(raw_N.mean())
    if whitened_N.numel() >= 2:
        metrics["adv/whitened_var_policy_mask"] = float(whitened_N.var(correction=1))
    return metrics


@torch.no_grad()
def capmask_metrics(response_mask_BT: Tensor, capped_rows_B: Tensor, fault_rows_B: Tensor) -> dict[str, float]:
    """Share of rows that the length cap took out of the policy loss, and the tokens that are left in it.

    The share is over rows with a sampled token and without a fault, so padding rows do not dilute it; it has no key
    if there is none.

    Raises:
        TrainingError: the shapes do not fit, or a mask is not made of 0 and 1.
    """
    policy_mask_BT = policy_mask(response_mask_BT, capped_rows_B, fault_rows_B)
    is_row_B = response_mask_BT.bool().any(dim=1) & ~fault_rows_B.bool()
    metrics = {"capmask/policy_tokens": float(policy_mask_BT.sum())}
    num_rows = int(is_row_B.sum())
    if num_rows:
        metrics["capmask/capped_row_fraction"] = int((is_row_B & capped_rows_B.bool()).sum()) / num_rows
    return metrics
