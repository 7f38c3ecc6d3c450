"""What the losses use of a batch: masks, advantages, and the invariants at the trainer's end."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from atlas_rl.errors import RecordError, RewardError, TrainingError
from atlas_rl.training.batch import (
    BatchFacts,
    forced_tokens,
    group_metrics,
    invariant_errors,
    loss_inputs,
    row_tensors,
)


def row(
    *spans: tuple[int, int], fault: bool = False, capped: bool = False, owed: dict[int, list[float]] | None = None
) -> dict[str, Any]:
    return {
        "generations": [(start, end - start, None) for start, end in spans],
        "is_fault": fault, "is_capped": capped, "owed_rewards": owed or {}, "decomposition_error": 0.0,
        "mapped_slots_minus_events": 0, "forced_spans": [(1, 2), (3, 4)],
    }  # fmt: skip


#                        sampled     observation
MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
REWARDS = torch.tensor([[0.0, -0.5, 0.0, 1.0], [0.0, 0.0, 0.25, 0.0], [0.0] * 4, [0.0] * 4])
VALUES = torch.tensor([[0.5, 0.25, 9.0, 0.0], [0.0, 0.0, 0.0, 9.0], [7.0] * 4, [7.0] * 4])
FACTS = BatchFacts(
    keys=["a_0_0", "b_0_0", "c_0_0", "a_0_0"],
    extra=[
        row((0, 2), (3, 4), owed={1: [-0.5], 3: [1.0]}),
        row((0, 3), capped=True, owed={2: [0.25]}),
        row((0, 1), fault=True),
        row((0, 2), (3, 4)),
    ],
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


def test_at_turn_level_an_action_shares_one_advantage_and_the_critic_learns_its_first_token():
    result = loss_inputs(REWARDS, VALUES, MASK, FACTS, gamma=0.5, lam=1.0, level="turn")
    #                                  submit: 1.0 - 0; explore: -0.5 + 0.5 * 0 - 0.5 + 0.5 * 1.0
    assert result.raw_BT.tolist() == [[-0.5, -0.5, 0.0, 1.0], [0.25, 0.25, 0.25, 0.0], [0.0] * 4, [0.0] * 4]
    assert result.returns_BT.tolist() == [[0.0, 0.0, 0.0, 1.0], [0.25, 0.25, 0.25, 0.0], [0.0] * 4, [0.0] * 4]
    #                                            episode       capped: the critic keeps it    fault  padding
    assert result.value_mask_BT.int().tolist() == [[1, 0, 0, 1], [1, 0, 0, 0], [0] * 4, [0] * 4]
    assert result.policy_mask_BT.int().tolist() == [[1, 1, 0, 1], [0] * 4, [0] * 4, [0] * 4]


def test_at_token_level_the_critic_learns_every_sampled_token_of_a_row_without_a_fault():
    result = loss_inputs(REWARDS, VALUES, MASK, FACTS, gamma=1.0, lam=1.0)
    assert result.value_mask_BT.int().tolist() == [[1, 1, 0, 1], [1, 1, 1, 0], [0] * 4, [0] * 4]


def test_a_forced_first_token_still_gives_its_action_its_state():
    forced_BT = torch.zeros_like(MASK, dtype=torch.bool)
    forced_BT[0, 0] = True
    plain = loss_inputs(REWARDS, VALUES, MASK, FACTS, gamma=0.5, lam=1.0, level="turn")
    forced = loss_inputs(REWARDS, VALUES, MASK, FACTS, gamma=0.5, lam=1.0, level="turn", forced_BT=forced_BT)
    assert torch.equal(forced.raw_BT, plain.raw_BT)
    assert torch.equal(forced.value_mask_BT, plain.value_mask_BT)
    assert forced.policy_mask_BT.int().tolist() == [[0, 1, 0, 1], [0] * 4, [0] * 4, [0] * 4]


@pytest.mark.parametrize("level", ["token", "turn"])
def test_the_numbers_of_a_fault_change_nothing_for_the_others(level: str):
    values = VALUES.clone()
    values[2] = math.nan
    clean = loss_inputs(REWARDS, VALUES, MASK, FACTS, gamma=1.0, lam=0.9, level=level)
    dirty = loss_inputs(REWARDS, values, MASK, FACTS, gamma=1.0, lam=0.9, level=level)
    for one, other in ((clean.raw_BT, dirty.raw_BT), (clean.advantages_BT, dirty.advantages_BT)):
        assert torch.equal(one, other)
    # Whitening sees the one episode that trains: the fault's and the capped row's tokens do not move its mean.
    assert abs(float(clean.advantages_BT[0].double().sum())) < 1e-6


@pytest.mark.parametrize("level", ["token", "turn"])
def test_a_batch_of_capped_rows_has_no_policy_token_and_still_teaches_the_critic(level: str):
    capped = replace(FACTS, extra=[extra | {"is_capped": True} for extra in FACTS.extra])
    result = loss_inputs(REWARDS, VALUES, MASK, capped, gamma=1.0, lam=1.0, level=level)
    assert not result.policy_mask_BT.any()
    assert not result.advantages_BT.any()
    assert result.value_mask_BT.any(dim=1).tolist() == [True, True, False, False]


def put(tensor: torch.Tensor, place: int, token: int, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[place, token] = value
    return changed


@pytest.mark.parametrize("level", ["token", "turn"])
@pytest.mark.parametrize(
    ("rewards", "values", "error", "message"),
    [
        (put(REWARDS, 1, 2, math.nan), VALUES, RewardError, "trajectory b_0: token rewards: nan on token 2"),
        (put(REWARDS, 0, 1, math.inf), VALUES, RewardError, "trajectory a_0: token rewards: inf on token 1"),
        (put(REWARDS, 0, 2, 0.5), VALUES, RewardError, "trajectory a_0: token rewards: 0.5 on token 2"),
        (REWARDS, put(VALUES, 1, 0, math.nan), TrainingError, "trajectory b_0: values: nan on token 0"),
    ],
)
def test_a_wrong_number_stops_the_step_with_the_name_of_its_trajectory_and_field(
    level: str, rewards: torch.Tensor, values: torch.Tensor, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        loss_inputs(rewards, values, MASK, FACTS, gamma=1.0, lam=1.0, level=level)


@pytest.mark.parametrize("level", ["token", "turn"])
@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 2), (1, 4)], r"trajectory a_0: generations: tokens \[1, 4\) start inside the generation before"),
        ([(0, 2), (3, 9)], r"trajectory a_0: generations: tokens \[3, 9\) leave the response"),
        ([(0, 2)], "trajectory a_0: response_mask: token 3 is 1, but generations say 0"),
    ],
)
def test_wrong_offsets_stop_the_step_with_the_name_of_their_trajectory(
    level: str, spans: list[tuple[int, int]], message: str
):
    wrong = replace(FACTS, extra=[row(*spans), *FACTS.extra[1:]])
    with pytest.raises(RecordError, match=message):
        loss_inputs(REWARDS, VALUES, MASK, wrong, gamma=1.0, lam=1.0, level=level)


def test_groups_that_faults_hit_are_counted_and_those_left_with_one_row_or_none_too():
    #       whole       one row left  none left   two left          padding of another group
    keys = ["a_0", "a_1", "b_0", "b_1", "c_0", "c_1", "d_0", "d_1", "d_2", "pad_0"]
    faults = {"b_1", "c_0", "c_1", "d_0", "pad_0"}
    facts = BatchFacts(
        keys=[f"{key}_0" for key in keys],
        extra=[row(fault=key in faults) for key in keys],
        is_padding=[key == "pad_0" for key in keys],
    )
    assert group_metrics(facts) == {
        "train/groups_with_faults": 3.0, "train/groups_with_one_row": 1.0, "train/groups_without_rows": 1.0
    }  # fmt: skip


def test_a_group_of_one_row_is_no_news_unless_a_fault_made_it_so():
    facts = BatchFacts(keys=["a_0_0", "b_0_0"], extra=[row(), row()], is_padding=[False, False])
    assert set(group_metrics(facts).values()) == {0.0}
