"""What the losses use of a batch: masks, advantages, and the invariants at the trainer's end."""

from typing import Any

import numpy as np
import torch

from atlas_rl.training.batch import BatchFacts, forced_tokens, invariant_errors, loss_inputs, row_tensors


def row(*, fault: bool = False, capped: bool = False, owed: dict[int, list[float]] | None = None) -> dict[str, Any]:
    return {
        "is_fault": fault, "is_capped": capped, "owed_rewards": owed or {}, "decomposition_error": 0.0,
        "mapped_slots_minus_events": 0, "forced_spans": [(1, 2), (3, 4)],
    }  # fmt: skip


#                        sampled     observation
MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
REWARDS = torch.tensor([[0.0, -0.5, 0.0, 1.0], [0.0, 0.0, 0.25, 0.0], [0.0] * 4, [0.0] * 4])
VALUES = torch.tensor([[0.5, 0.25, 9.0, 0.0], [0.0, 0.0, 0.0, 9.0], [7.0] * 4, [7.0] * 4])
FACTS = BatchFacts(
    keys=["a_0_0", "b_0_0", "c_0_0", "a_0_0"],
    extra=[row(owed={1: [-0.5], 3: [1.0]}), row(capped=True, owed={2: [0.25]}), row(fault=True), row()],
    is_padding=[False, False, False, True],
)


def test_a_capped_row_leaves_the_policy_and_stays_with_the_critic_and_a_fault_leaves_both():
    result = loss_inputs(REWARDS, VALUES, MASK, FACTS, gamma=1.0, lam=1.0)
    #                                            episode    capped     fault      padding
    assert result.policy_mask_BT.int().tolist() == [[1, 1, 0, 1], [0] * 4, [0] * 4, [0] * 4]
    assert result.returns_BT.tolist() == [[0.5, 0.5, 0.0, 1.0], [0.25, 0.25, 0.25, 0.0], [0.0] * 4, [0.0] * 4]
    assert result.raw_BT.tolist() == [[0.0, 0.25, 0.0, 1.0], [0.25, 0.25, 0.25, 0.0], [0.0] * 4, [0.0] * 4]
    policy = result.advantages_BT[result.policy_mask_BT].double()
    assert abs(policy.mean()) < 1e-6
    assert abs(policy.var() - 1) < 1e-6
    assert not result.advantages_BT[~result.policy_mask_BT].any()


def test_forced_tokens_leave_the_whitening_and_the_policy_but_not_the_returns():
    forced_BT = forced_tokens(FACTS, MASK)
    assert forced_BT.int().tolist() == [[0, 1, 0, 1]] * 3 + [[0] * 4]  # padding copies another row's facts
    result = loss_inputs(REWARDS, VALUES, MASK, FACTS, gamma=1.0, lam=1.0, forced_BT=forced_BT)
    assert result.policy_mask_BT.int().tolist() == [[1, 0, 0, 0], [0] * 4, [0] * 4, [0] * 4]
    assert result.returns_BT.tolist() == [[0.5, 0.5, 0.0, 1.0], [0.25, 0.25, 0.25, 0.0], [0.0] * 4, [0.0] * 4]
    assert not result.advantages_BT.any()  # one token has no variance


def test_garbage_on_unsampled_tokens_changes_nothing():
    garbage = torch.where(MASK.bool(), VALUES, torch.full_like(VALUES, 1e6))
    clean = loss_inputs(REWARDS, VALUES, MASK, FACTS, gamma=1.0, lam=0.9)
    dirty = loss_inputs(REWARDS, garbage, MASK, FACTS, gamma=1.0, lam=0.9)
    assert torch.equal(clean.advantages_BT, dirty.advantages_BT)
    assert torch.equal(clean.returns_BT, dirty.returns_BT)


def test_invariants_are_zero_for_the_rewards_that_the_records_owe_and_padding_has_none():
    assert [tuple(error) for error in invariant_errors(FACTS, REWARDS)] == [(0.0, 0.0, 0)] * 3


def test_a_reward_that_slid_one_token_shows():
    slid = REWARDS.clone()
    slid[0] = torch.tensor([-0.5, 0.0, 0.0, 1.0])
    assert [error.mapping_sum_error for error in invariant_errors(FACTS, slid)] == [1.0, 0.0, 0.0]


def test_stored_tensors_are_named_by_uid_and_session_and_cut_to_the_row():
    result = loss_inputs(REWARDS, VALUES, MASK, FACTS, gamma=1.0, lam=1.0)
    arrays = row_tensors(FACTS, VALUES, result, lengths=[4, 3, 1, 1])
    names = ("values", "returns", "raw_advantages", "advantages", "policy_mask")
    assert sorted(arrays) == sorted(f"{key}/{name}" for key in ("a_0", "b_0") for name in names)
    assert {name: array.shape for name, array in arrays.items() if name.startswith("b_0")} == {
        f"b_0/{name}": (3,) for name in names
    }
    assert np.array_equal(arrays["a_0/policy_mask"], [True, True, False, True])
