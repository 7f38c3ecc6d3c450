"""The advantage of one batch: rows from the TransferQueue in, what the losses use out."""

# Shape suffixes: B = rows of the batch, T = tokens of the longest response; shorter rows are padded with 0.

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas_rl.objective.advantages import first_tokens, gae, turn_gae, whiten
from atlas_rl.objective.inputs import action_of_token, require_sound
from atlas_rl.objective.masks import policy_mask
from atlas_rl.rewards.invariants import RowErrors, mapping_distance


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What the rollout says about each row of a batch."""

    keys: Sequence[str]
    """[B] UID_SESSION_INDEX."""
    extra: Sequence[dict[str, Any]]
    """[B] the loop's extra_fields."""
    is_padding: Sequence[bool]
    """[B] rows that verl added to fill a mini-batch."""

    @property
    def rows(self) -> list[str]:
        """[B] UID_SESSION."""
        return [key.rsplit("_", 1)[0] for key in self.keys]

    @property
    def is_fault(self) -> list[bool]:
        """[B] rows that train nothing: faults of the infrastructure, and padding."""
        return [bool(e["is_fault"]) or padding for e, padding in zip(self.extra, self.is_padding, strict=True)]

    @property
    def is_capped(self) -> list[bool]:
        """[B] rows cut by the length cap: out of the policy loss, still seen by the critic."""
        return [bool(e["is_capped"]) for e in self.extra]

    @property
    def real(self) -> list[int]:
        """Places of the rows that are episodes without a fault."""
        return [place for place, fault in enumerate(self.is_fault) if not fault]

    @property
    def sampled_spans(self) -> list[list[tuple[int, int]]]:
        """[B] half-open ranges of the tokens of each generation; none in rows that train nothing."""
        return [
            [] if fault else [(offset, offset + num_sampled) for offset, num_sampled, _ in extra["generations"]]
            for extra, fault in zip(self.extra, self.is_fault, strict=True)
        ]


def forced_tokens(facts: BatchFacts, like_BT: Tensor) -> Tensor:
    """[B, T] bool, true on the sampled tokens that had no legal alternative.

    Args:
        facts: What the rollout says about each row.
        like_BT: Gives the shape.
    """
    forced_BT = torch.zeros(like_BT.shape, dtype=torch.bool)
    for place, (extra, padding) in enumerate(zip(facts.extra, facts.is_padding, strict=True)):
        if not padding:  # a copy of another row's facts
            for start, end in extra["forced_spans"]:
                forced_BT[place, start:end] = True
    return forced_BT


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What leaves the trainer is what its losses used."""

    raw_BT: Tensor
    """Generalised advantages before whitening; 0 on unsampled tokens, one number an action at turn level."""
    advantages_BT: Tensor
    """Whitened over policy tokens, 0 elsewhere: the policy loss reads these."""
    returns_BT: Tensor
    """Advantage plus value; 0 on unsampled tokens, one number an action at turn level."""
    policy_mask_BT: Tensor
    """Bool, true on the tokens of the policy loss."""
    value_mask_BT: Tensor
    """Bool, true on the tokens where the critic learns its return: all sampled ones, at turn level the first of each
    action, where its value was read."""


def loss_inputs(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    facts: BatchFacts,
    *,
    gamma: float,
    lam: float,
    level: str = "token",
    forced_BT: Tensor | None = None,
) -> LossInputs:
    """GAE over sampled tokens or over actions, whitened over policy tokens.

    Args:
        rewards_BT: float32 token rewards.
        values_BT: The critic's values of the prefix before each token.
        mask_BT: 1 on sampled tokens; 0 throughout on faults and padding.
        facts: Which rows are capped, faulty or padding, and where their generations are.
        gamma: Discount of one sampled token, at turn level of one action.
        lam: GAE's lambda for one sampled token, at turn level for one action.
        level: ``token`` or ``turn``.
        forced_BT: Tokens without an alternative, which then leave the policy's tokens but stay part of their action;
            None: they stay.

    Raises:
        RewardError: a reward is not finite or sits on an unsampled token.
        TrainingError: a value of a sampled token is not finite.
        RecordError: generations overlap, leave their row or disagree with the mask.
    """
    is_fault_B = torch.tensor(facts.is_fault, dtype=torch.bool)
    sampled_BT = mask_BT.bool() & ~is_fault_B[:, None]
    require_sound(facts.rows, rewards_BT, values_BT, sampled_BT)
    action_BT = action_of_token(facts.rows, facts.sampled_spans, sampled_BT)
    if level == "turn":
        raw_BT, returns_BT = turn_gae(rewards_BT, values_BT, action_BT, gamma, lam)
        value_BT = first_tokens(action_BT)
    else:
        raw_BT, returns_BT = gae(rewards_BT, values_BT, sampled_BT, gamma, lam)
        value_BT = sampled_BT
    policy_BT = policy_mask(sampled_BT, torch.tensor(facts.is_capped, dtype=torch.bool), is_fault_B, forced_BT)
    return LossInputs(raw_BT, whiten(raw_BT, policy_BT), returns_BT, policy_BT, value_BT)


def group_metrics(facts: BatchFacts) -> dict[str, float]:
    """What faults did to the groups, the rows of one drawn question; padding belongs to none.

    Returns:
        ``train/groups_with_faults``: groups with a fault; of these ``train/groups_with_one_row`` are left with one row
        and ``train/groups_without_rows`` with none.
    """
    rows = [
        (key.rsplit("_", 2)[0], bool(extra["is_fault"]))
        for key, extra, padding in zip(facts.keys, facts.extra, facts.is_padding, strict=True)
        if not padding
    ]
    hit = {uid for uid, fault in rows if fault}
    left = Counter(uid for uid, fault in rows if not fault)
    return {
        "train/groups_with_faults": float(len(hit)),
        "train/groups_with_one_row": float(sum(left[uid] == 1 for uid in hit)),
        "train/groups_without_rows": float(sum(left[uid] == 0 for uid in hit)),
    }


def row_tensors(facts: BatchFacts, values_BT: Tensor, result: LossInputs, lengths: Sequence[int]) -> dict[str, Any]:
    """Arrays for tensors.npz: UID_SESSION/NAME -> [T of the row], for every real row."""
    arrays: dict[str, Any] = {}
    named = {
        "values": values_BT.float(),
        "returns": result.returns_BT,
        "raw_advantages": result.raw_BT,
        "advantages": result.advantages_BT,
        "policy_mask": result.policy_mask_BT,
    }
    rows = facts.rows
    for place in facts.real:
        for name, tensor in named.items():
            arrays[f"{rows[place]}/{name}"] = np.ascontiguousarray(tensor[place, : lengths[place]].numpy())
    return arrays


def step_manifest(facts: BatchFacts, step: int) -> dict[str, Any]:
    """What a step's folder holds: every row with the digest of its record, None if ``train_fraction`` left it out."""
    rows = [
        {"row": row, "record_sha256": extra["record_sha256"], "is_fault": extra["is_fault"]}
        for row, extra, padding in zip(facts.rows, facts.extra, facts.is_padding, strict=True)
        if not padding
    ]
    return {"step": step, "num_rows": len(rows), "rows": sorted(rows, key=lambda row: str(row["row"]))}


def invariant_errors(facts: BatchFacts, rewards_BT: Tensor) -> list[RowErrors]:
    """The invariants of every row but padding, from the rewards as they reached the trainer.

    Args:
        facts: What the rollout says of each row, the rewards that its breakdown owes included.
        rewards_BT: float32 token rewards from the TransferQueue.
    """
    errors = []
    for place, padding in enumerate(facts.is_padding):
        if not padding:
            extra = facts.extra[place]
            errors.append(
                RowErrors(
                    mapping_sum_error=mapping_distance(rewards_BT[place].tolist(), extra["owed_rewards"]),
                    decomposition_error=extra["decomposition_error"],
                    mapped_slots_minus_events=extra["mapped_slots_minus_events"],
                )
            )
    return errors
