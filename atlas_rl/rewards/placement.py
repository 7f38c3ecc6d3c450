"""From exact slots to the float32 rewards that the trainer sees, one on the last sampled token of each action.

GAE skips unsampled tokens, so a reward anywhere else would vanish without a word.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from math import fsum, inf

import numpy as np

from atlas_rl.errors import RewardError
from atlas_rl.records.trajectory import PlacedReward
from atlas_rl.rewards.score import Scored


def place(scored: Scored) -> tuple[PlacedReward, ...]:
    """Place each slot on its token, in slot order.

    An entry is the slot's breakdown value as a float32. Two slots share a token when a row ends on an explore
    without a submit: there both are rounded to a common step, so that each of them and their sum are float32
    numbers. So the entries, the token rewards and ``reward_score`` add up to the same number, exactly.

        sampled tokens 0-2 and 7-9, explore -0.25 on 2, submit 1.0 on 9  ->  [(2, -0.25), (9, 1.0)]

    Raises:
        RewardError: a slot's token was not sampled.
    """
    slots_of_token: dict[int, list[int]] = defaultdict(list)
    for index, slot in enumerate(scored.slots):
        turn = bisect_right(scored.sampled_spans, (slot.offset, inf)) - 1
        if turn < 0 or slot.offset >= scored.sampled_spans[turn][1]:
            raise RewardError(
                f"reward {float(slot.exact)} of event {slot.event_index} on token {slot.offset}, which was not sampled "
                f"(sampled: {list(scored.sampled_spans)}); place it on the last sampled token of its action"
            )
        slots_of_token[slot.offset].append(index)
    placed: dict[int, PlacedReward] = {}
    for offset, indices in slots_of_token.items():
        values = float32_parts([float(scored.slots[index].exact) for index in indices])
        placed.update(
            (index, PlacedReward(offset=offset, value=value)) for index, value in zip(indices, values, strict=True)
        )
    return tuple(placed[index] for index in range(len(scored.slots)))


def token_rewards(placed: Sequence[PlacedReward], length: int) -> list[float]:
    """Spread placed rewards over a response.

    Args:
        placed: from ``place``.
        length: T, tokens of the response.

    Returns:
        [T] float32 values as Python floats, 0.0 on every token without a reward.

    Raises:
        RewardError: a reward lies beyond the response.
    """
    rewards = [0.0] * length
    for entry in placed:
        if entry.offset >= length:
            raise RewardError(
                f"reward {entry.value} on token {entry.offset} of a response of {length} tokens; pass the response's "
                "length"
            )
        rewards[entry.offset] += entry.value
    return rewards


def reward_score(placed: Sequence[PlacedReward]) -> float:
    """Sum of the placed rewards, added exactly and rounded once."""
    return fsum(entry.value for entry in placed)


def float32_parts(values: Sequence[float]) -> list[float]:
    """Round the rewards of one token to float32 so that their sum is a float32 too.

    One value becomes its nearest float32. Several are rounded to multiples of the widest float32 spacing among them
    and their sum, which moves each by at most half the spacing of the largest.
    """
    if len(values) == 1:
        return [float(np.float32(values[0]))]
    singles = [np.float32(value) for value in (*values, fsum(values))]
    step = float(max(np.spacing(abs(single)) for single in singles))
    while True:
        parts = [round(value / step) * step for value in values]
        total = fsum(parts)
        if float(np.float32(total)) == total and all(float(np.float32(part)) == part for part in parts):
            return parts
        step *= 2
