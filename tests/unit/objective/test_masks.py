import pytest
import torch

from atlas_rl.errors import TrainingError
from atlas_rl.objective.masks import policy_mask, value_mask

NO, YES = False, True
RESPONSE = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 1], [1, 1, 1, 0]])


def test_the_policy_learns_from_sampled_tokens_of_rows_without_cap_or_fault() -> None:
    mask = policy_mask(RESPONSE, torch.tensor([NO, YES, NO]), torch.tensor([NO, NO, YES]))
    assert mask.tolist() == [[YES, YES, NO, YES], [NO, NO, NO, NO], [NO, NO, NO, NO]]
    assert mask.dtype == torch.bool


def test_the_critic_learns_from_capped_rows_too() -> None:
    mask = value_mask(RESPONSE, torch.tensor([NO, NO, YES]))
    assert mask.tolist() == [[YES, YES, NO, YES], [YES, NO, NO, YES], [NO, NO, NO, NO]]


def test_rows_given_as_numbers_mean_the_same() -> None:
    mask = policy_mask(RESPONSE.float(), torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]))
    assert mask.sum() == 3


def test_the_caller_keeps_its_mask() -> None:
    before = RESPONSE.clone()
    policy_mask(RESPONSE, torch.tensor([YES] * 3), torch.tensor([NO] * 3))
    assert torch.equal(RESPONSE, before)


@pytest.mark.parametrize(
    ("capped", "fault", "named"),
    [
        (torch.zeros(2), torch.zeros(3), r"capped_rows of shape \[B\], got \(2,\)"),
        (torch.zeros(3), torch.zeros(3, 1), r"fault_rows of shape \[B\], got \(3, 1\)"),
    ],
)
def test_rows_that_do_not_fit_are_refused(capped: torch.Tensor, fault: torch.Tensor, named: str) -> None:
    with pytest.raises(TrainingError, match=named):
        policy_mask(RESPONSE, capped, fault)


def test_a_mask_of_other_numbers_is_refused() -> None:
    with pytest.raises(TrainingError, match="other than 0 and 1"):
        value_mask(torch.tensor([[0.0, 0.5]]), torch.tensor([NO]))


def test_forced_tokens_leave_the_policy_and_stay_with_the_critic() -> None:
    forced = torch.tensor([[NO, YES, YES, NO], [NO] * 4, [NO] * 4])
    mask = policy_mask(RESPONSE, torch.tensor([NO] * 3), torch.tensor([NO] * 3), forced)
    assert mask.tolist() == [[YES, NO, NO, YES], [YES, NO, NO, YES], [YES, YES, YES, NO]]
    with pytest.raises(TrainingError, match=r"needs forced of that shape, got \(3, 2\)"):
        policy_mask(RESPONSE, torch.tensor([NO] * 3), torch.tensor([NO] * 3), forced[:, :2])
