"""Numbers that would spoil a batch are refused by the name of their trajectory and field."""

import math

import pytest
import torch

from atlas_rl.errors import AtlasError, RecordError, RewardError, TrainingError
from atlas_rl.objective.inputs import action_of_token, require_sound

ROWS = ["u1_0", "u1_1"]
SAMPLED = torch.tensor([[True, True, False], [True, False, False]])


def put(row: int, token: int, value: float) -> torch.Tensor:
    tensor = torch.zeros(2, 3)
    tensor[row, token] = value
    return tensor


@pytest.mark.parametrize(
    ("rewards", "values", "error", "message"),
    [
        (put(0, 1, math.nan), put(0, 0, 0), RewardError, "trajectory u1_0: token rewards: nan on token 1; a"),
        (put(1, 0, math.inf), put(0, 0, 0), RewardError, "trajectory u1_1: token rewards: inf on token 0; a"),
        (put(1, 2, math.nan), put(0, 0, 0), RewardError, "trajectory u1_1: token rewards: nan on token 2; a"),
        (put(1, 1, 0.5), put(0, 0, 0), RewardError, "trajectory u1_1: token rewards: 0.5 on token 1; that"),
        (put(0, 0, 0), put(1, 0, math.nan), TrainingError, "trajectory u1_1: values: nan on token 0; the"),
        (put(0, 0, 0), put(0, 1, -math.inf), TrainingError, "trajectory u1_0: values: -inf on token 1; the"),
    ],
)  # fmt: skip
def test_a_wrong_number_names_its_trajectory_field_and_token(
    rewards: torch.Tensor, values: torch.Tensor, error: type[AtlasError], message: str
) -> None:
    with pytest.raises(error) as refused:
        require_sound(ROWS, rewards, values, SAMPLED)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_values_of_unsampled_tokens_may_be_anything() -> None:
    require_sound(ROWS, put(0, 1, -0.5), put(1, 2, math.nan), SAMPLED)


def test_actions_are_numbered_in_their_row_and_adjacent_ones_stay_apart() -> None:
    sampled = torch.tensor([[1, 1, 1, 0, 1], [0, 0, 0, 0, 0]]).bool()
    spans = [[(0, 1), (1, 3), (3, 3), (4, 5)], []]  # the third generation sampled nothing
    assert action_of_token(ROWS, spans, sampled).tolist() == [[0, 1, 1, -1, 2], [-1] * 5]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 2), (1, 3)], "trajectory u1_0: generations: tokens [1, 3) start inside the generation before, which"),
        ([(0, 2), (3, 6)], "trajectory u1_0: generations: tokens [3, 6) leave the response, which has at most 5"),
        ([(-1, 2)], "trajectory u1_0: generations: tokens [-1, 2) start inside the generation before, which ends at 0"),
        ([(0, 2)], "trajectory u1_0: response_mask: token 3 is 1, but generations say 0; both must"),
        ([(0, 3), (3, 5)], "trajectory u1_0: response_mask: token 2 is 0, but generations say 1"),
    ],
)  # fmt: skip
def test_offsets_that_overlap_leave_the_row_or_contradict_the_mask_are_refused(
    spans: list[tuple[int, int]], message: str
) -> None:
    sampled = torch.tensor([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
    with pytest.raises(RecordError) as refused:
        action_of_token(ROWS, [spans, []], sampled)
    assert str(refused.value).startswith(message)
