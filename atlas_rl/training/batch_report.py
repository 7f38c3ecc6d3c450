"""What a step makes of its batch before any update: penalised rewards and figures."""

import logging
from typing import Any

import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.ray_trainer import apply_kl_penalty

from atlas_rl.objective.metrics import advantage_metrics, capmask_metrics, mismatch_metrics
from atlas_rl.records.breakdown import Breakdown
from atlas_rl.rewards.batch_metrics import batch_metrics
from atlas_rl.training.batch import BatchFacts, LossInputs, group_metrics, invariant_errors

logger = logging.getLogger(__name__)


def batch_report(
    facts: BatchFacts,
    padded: TensorDict,
    forced_BT: torch.Tensor,
    result: LossInputs,
    *,
    trains_forced_tokens: bool,
    step: int,
) -> dict[str, float]:
    """Figures of rewards, groups, masks, advantages and log-probabilities; groups that lost rows are warned of.

    Args:
        facts: What the rollout says about each row.
        padded: Fields of the rows, [B, T].
        forced_BT: Tokens without a legal alternative.
        result: What the losses use.
        trains_forced_tokens: Whether such tokens are in the policy loss.
        step: For the warning.
    """
    rows = [e["breakdown"] for e, padding in zip(facts.extra, facts.is_padding, strict=True) if not padding]
    breakdowns = [Breakdown.model_validate(row) for row in rows]
    own = batch_metrics(breakdowns, invariant_errors(facts, padded["rm_scores"]))
    own |= group_metrics(facts)
    if own["train/groups_with_faults"]:
        logger.warning(
            "step %s: faults took rows from %.0f groups; %.0f of them have one row left, %.0f none", step,
            *(own[f"train/groups_{what}"] for what in ("with_faults", "with_one_row", "without_rows")),
        )  # fmt: skip
    own |= advantage_metrics(result.raw_BT, result.advantages_BT, result.policy_mask_BT)
    own |= capmask_metrics(
        padded["response_mask"],
        torch.tensor(facts.is_capped, dtype=torch.bool),
        torch.tensor(facts.is_fault, dtype=torch.bool),
        None if trains_forced_tokens else forced_BT,
    )
    own |= mismatch_metrics(padded["rollout_log_probs"], padded["old_log_probs"], padded["response_mask"], forced_BT)
    if result.policy_mask_BT.any():
        own["policy/entropy"] = float(padded["entropy"][result.policy_mask_BT].double().mean())
    return own


def kl_penalised(
    padded: TensorDict, real: list[int], controller: Any, penalty: str
) -> tuple[torch.Tensor, dict[str, float]]:
    """[B, T] token rewards less the KL penalty, and verl's figures of it.

    Over the rows that train alone: verl's mean KL must not see the others.

    Args:
        padded: Fields of the rows, [B, T].
        real: Places of the rows that train.
        controller: verl's KL controller.
        penalty: ``algorithm.kl_penalty``.
    """
    rows = padded[real]
    rows["token_level_scores"] = rows["rm_scores"]
    data, metrics = apply_kl_penalty(DataProto(batch=rows), kl_ctrl=controller, kl_penalty=penalty)
    rewards: torch.Tensor = padded["rm_scores"].clone()
    rewards[real] = data.batch["token_level_rewards"]
    return rewards, metrics
