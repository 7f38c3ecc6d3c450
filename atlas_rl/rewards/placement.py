"""From exact slots to the float32 rewards that the trainer sees, one on the last sampled token of each action.

GAE skips unsampled tokens, so a reward anywhere else would vanish without a word.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from math import fsum, inf

import numpy as np

from atlas_rl.errors import RewardError
from atlas_rl.records.trajectory import PlacedReward
from atlas_rl.rewards.exact import to_float
from atlas_rl.rewards.score import Scored, Slot

_FLOAT32 = struct.Struct("<f")


def place(scored: Scored) -> tuple[PlacedReward, ...]:
    """Place each slot on its token, in slot order.

    An entry is the slot's breakdown value as a float32. Two slots share a token when a row ends on an explore
    without a submit: there both are rounded to a common step, so that each of them and their sum are float32
    numbers. So the entries, the token rewards and ``reward_score`` add up to the same number, exactly.

        sampled tokens 0-2 and 7-9, explore -0.25 on 2, submit 1.0 on 9  ->  [(2, -0.25), (9, 1.0)]

    Raises:
        RewardError: a slot's token was not sampled, or its reward is beyond float32.
    """
    values = placed_values(scored)
    return tuple(
        PlacedReward(offset=slot.offset, value=value) for slot, value in zip(scored.slots, values, strict=True)
    )


def placed_values(scored: Scored) -> list[float]:
    """The float32 value of each slot's entry, as ``place`` puts it on ``slot.offset``.

    Raises:
        RewardError: a slot's token was not sampled, or its reward is beyond float32.
    """
    last_tokens = {end - 1 for start, end in scored.sampled_spans if end > start}
    for slot in scored.slots:
        if slot.offset not in last_tokens:  # where it is in all but damaged records
            _check_sampled(slot, scored.sampled_spans)
    values = [to_float(slot.exact) for slot in scored.slots]
    slots_of_token: dict[int, list[int]] = {}
    for index, slot in enumerate(scored.slots):
        slots_of_token.setdefault(slot.offset, []).append(index)
    if len(slots_of_token) == len(values):
        return [_to_float32(value) for value in values]
    for indices in slots_of_token.values():
        parts = float32_parts([values[index] for index in indices])
        for index, part in zip(indices, parts, strict=True):
            values[index] = part
    return values


def _check_sampled(slot: Slot, spans: Sequence[tuple[int, int]]) -> None:
    turn = bisect_right(spans, (slot.offset, inf)) - 1
    if turn < 0 or slot.offset >= spans[turn][1]:
        raise RewardError(
            f"reward {float(slot.exact)} of event {slot.event_index} on token {slot.offset}, which was not sampled "
            f"(sampled: {list(spans)}); place it on the last sampled token of its action"
        )


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

    Raises:
        RewardError: a reward is beyond float32.
    """
    if len(values) == 1:
        return [_to_float32(values[0])]
    for value in (*values, fsum(values)):
        _to_float32(value)
    singles = [np.float32(value) for value in (*values, fsum(values))]
    step = float(max(np.spacing(abs(single)) for single in singles))
    while True:
        parts = [round(value / step) * step for value in values]
        total = fsum(parts)
        if float(np.float32(total)) == total and all(float(np.float32(part)) == part for part in parts):
            return parts
        step *= 2


def _to_float32(value: float) -> float:
    """The nearest float32; struct rounds as numpy does, several times faster, and refuses what float32 cannot hold."""
    try:
        (single,) = _FLOAT32.unpack(_FLOAT32.pack(value))
    except OverflowError as error:
        raise RewardError(f"reward {value} is beyond float32; lower the prices or the costs") from error
    return float(single)
