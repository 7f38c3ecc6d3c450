"""What reaches the trainer is checked before it is used; a wrong number names its trajectory and its field.

Shape suffixes: B = rows of the batch, T = response tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from atlas_rl.errors import RecordError, RewardError, TrainingError


def require_sound(rows: Sequence[str], rewards_BT: Tensor, values_BT: Tensor, sampled_BT: Tensor) -> None:
    """Refuse numbers that would spread through the whole batch, or vanish from it.

    Args:
        rows: [B] UID_SESSION.
        rewards_BT: Token rewards.
        values_BT: Anything at all on unsampled tokens.
        sampled_BT: Bool.

    Raises:
        RewardError: a reward is NaN or infinite, or sits on an unsampled token, where GAE would drop it.
        TrainingError: the critic's value of a sampled token is NaN or infinite.
    """
    _refuse(
        RewardError, rows, "token rewards", rewards_BT, ~rewards_BT.isfinite(),
        "a reward must be finite; replay the record to see what it earned",
    )  # fmt: skip
    _refuse(
        RewardError, rows, "token rewards", rewards_BT, (rewards_BT != 0) & ~sampled_BT,
        "that token was not sampled and would lose it; place it on the last sampled token of its action",
    )  # fmt: skip
    _refuse(
        TrainingError, rows, "values", values_BT, ~values_BT.isfinite() & sampled_BT,
        "the critic has diverged; go on from an earlier step with a lower critic.optim.lr",
    )  # fmt: skip


def action_of_token(rows: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]], sampled_BT: Tensor) -> Tensor:
    """Number the actions of each row from 0.

    The mask alone cannot say it: two turns without an observation between them would look like one.

    Args:
        rows: [B] UID_SESSION.
        spans: [B] half-open ranges of the sampled tokens of each generation, in order; a row out of training has none.
        sampled_BT: Bool.

    Returns:
        [B, T] int64, the action's place in its row on sampled tokens and -1 on all others. A generation without a
        token is no action.

    Raises:
        RecordError: spans overlap, leave the row, or are not what the mask holds.
    """
    num_tokens = sampled_BT.shape[1]
    action_BT = torch.full(sampled_BT.shape, -1, dtype=torch.int64)
    for place, (row, ranges) in enumerate(zip(rows, spans, strict=True)):
        before, action = 0, 0
        for start, end in ranges:
            if start < before:
                raise RecordError(
                    f"trajectory {row}: generations: tokens [{start}, {end}) start inside the generation before, which "
                    f"ends at {before}; its offsets must ascend"
                )
            if end > num_tokens:
                raise RecordError(
                    f"trajectory {row}: generations: tokens [{start}, {end}) leave the response, which has at most "
                    f"{num_tokens}; its offsets count tokens of the response"
                )
            if end > start:
                action_BT[place, start:end] = action
                action += 1
            before = end
        wrong = ((action_BT[place] >= 0) != sampled_BT[place]).nonzero()
        if wrong.numel():
            token = int(wrong[0])
            raise RecordError(
                f"trajectory {row}: response_mask: token {token} is {int(sampled_BT[place, token])}, but generations "
                f"say {int(action_BT[place, token] >= 0)}; both must come from one record"
            )
    return action_BT


def _refuse(
    error: type[RewardError | TrainingError], rows: Sequence[str], field: str, tensor_BT: Tensor, wrong_BT: Tensor,
    remedy: str,
) -> None:  # fmt: skip
    wrong = wrong_BT.nonzero()
    if wrong.numel():
        place, token = (int(index) for index in wrong[0])
        raise error(f"trajectory {rows[place]}: {field}: {float(tensor_BT[place, token])} on token {token}; {remedy}")
