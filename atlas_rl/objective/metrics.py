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
def capmask_metrics(
    response_mask_BT: Tensor, capped_rows_B: Tensor, fault_rows_B: Tensor, forced_BT: Tensor | None = None
) -> dict[str, float]:
    """Share of rows that the length cap took out of the policy loss, and the tokens that are left in it.

    The share is over rows with a sampled token and without a fault, so padding rows do not dilute it; it has no key
    if there is none.

    Raises:
        TrainingError: the shapes do not fit, or a mask is not made of 0 and 1.
    """
    policy_mask_BT = policy_mask(response_mask_BT, capped_rows_B, fault_rows_B, forced_BT)
    is_row_B = response_mask_BT.bool().any(dim=1) & ~fault_rows_B.bool()
    metrics = {"capmask/policy_tokens": float(policy_mask_BT.sum())}
    num_rows = int(is_row_B.sum())
    if num_rows:
        metrics["capmask/capped_row_fraction"] = int((is_row_B & capped_rows_B.bool()).sum()) / num_rows
    return metrics


@torch.no_grad()
def value_metrics(values_BT: Tensor, returns_BT: Tensor, value_mask_BT: Tensor) -> dict[str, float]:
    """Figures of the critic over the tokens that it learns, under the names that verl gives to those of all tokens.

    ``critic/vf_explained_var`` is 1 - var(return - value) / (var(return) + 1e-5). A figure without enough tokens to be
    defined (one for mean, max and min, two for a variance) has no key.
    """
    is_learnt_BT = value_mask_BT.bool()
    values_N, returns_N = values_BT[is_learnt_BT].double(), returns_BT[is_learnt_BT].double()
    metrics = {}
    if values_N.numel() >= 1:
        for name, numbers_N in (("values", values_N), ("returns", returns_N)):
            metrics[f"critic/{name}/mean"] = float(numbers_N.mean())
            metrics[f"critic/{name}/max"] = float(numbers_N.max())
            metrics[f"critic/{name}/min"] = float(numbers_N.min())
    if values_N.numel() >= 2:
        unexplained = (returns_N - values_N).var(correction=1) / (returns_N.var(correction=1) + 1e-5)
        metrics["critic/vf_explained_var"] = 1 - float(unexplained)
    return metrics


@torch.no_grad()
def mismatch_metrics(engine_BT: Tensor, trainer_BT: Tensor, sampled_BT: Tensor, forced_BT: Tensor) -> dict[str, float]:
    """How far the engine's log-probabilities are from the trainer's, forced and free tokens apart.

    ``mismatch/{free,forced}/`` holds ``logprob_difference_mean`` and ``_max`` (absolute, in nats) and ``kl_k3``, the
    mean of r - log r - 1 with r the trainer's probability over the engine's: an estimate, never negative, of the
    divergence of the engine's distribution from the trainer's (k3 of Schulman, "Approximating KL Divergence", 2020).
    A kind without a token has no keys.

    Args:
        engine_BT: Nats, of the distribution that was sampled.
        trainer_BT: Nats, before the update.
        sampled_BT: 1 or True exactly on sampled tokens.
        forced_BT: True for tokens without a legal alternative.
    """
    metrics = {}
    if sampled_BT.any():
        metrics["mismatch/forced_token_fraction"] = float((sampled_BT.bool() & forced_BT).sum() / sampled_BT.sum())
    for name, kind_BT in (("free", ~forced_BT), ("forced", forced_BT)):
        chosen_BT = sampled_BT.bool() & kind_BT
        if chosen_BT.any():
            log_ratio_N = trainer_BT[chosen_BT].double() - engine_BT[chosen_BT].double()
            metrics[f"mismatch/{name}/logprob_difference_mean"] = float(log_ratio_N.abs().mean())
            metrics[f"mismatch/{name}/logprob_difference_max"] = float(log_ratio_N.abs().max())
            metrics[f"mismatch/{name}/kl_k3"] = float((log_ratio_N.exp() - log_ratio_N - 1).mean())
    return metrics
