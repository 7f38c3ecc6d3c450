"""What must be exactly 0 on every row: the placed rewards against the breakdown, from the record alone.

Nothing here trusts ``score`` or ``place``: an action is a whole turn, so offsets come from the episode's generations,
and values from the breakdown's fields.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import fsum, inf, isnan
from typing import NamedTuple

from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.episode import Episode
from atlas_rl.records.trajectory import PlacedReward
from atlas_rl.records.vocabulary import EventKind, TerminalReason
from atlas_rl.rewards.placement import float32_parts, place, token_rewards
from atlas_rl.rewards.score import Scored


class RowErrors(NamedTuple):
    """The three invariants of one row; anything but 0 stops the run."""

    mapping_sum_error: float
    decomposition_error: float
    mapped_slots_minus_events: int


def mapping_sum_error(rewards: Sequence[float], breakdown: Breakdown, episode: Episode) -> float:
    """Distance between the rewards on the tokens and the breakdown.

    Args:
        rewards: [T] token rewards as the trainer gets them.
        breakdown: what the row earned.
        episode: where its actions are.

    Returns:
        Sum over tokens of |reward on the token - reward that the breakdown owes it|, infinite if a reward is not a
        number. It bounds the difference of the two sums from above, and unlike that difference it also sees a reward
        that slid to another token.
    """
    return mapping_distance(rewards, owed_rewards(breakdown, episode))


def mapping_distance(rewards: Sequence[float], owed: Mapping[int, Sequence[float]]) -> float:
    """Sum over tokens of |reward on the token - reward owed to it|.

    Args:
        rewards: [T] token rewards as the trainer gets them.
        owed: from ``owed_rewards``, made where the episode ran.
    """
    length = max(len(rewards), 1 + max(owed, default=-1))
    error = fsum(
        abs((rewards[offset] if offset < len(rewards) else 0.0) - fsum(float32_parts(owed[offset])))
        if offset in owed
        else abs(rewards[offset])
        for offset in range(length)
        if offset in owed or rewards[offset]
    )
    return inf if isnan(error) else error


def mapped_slots_minus_events(placed: Sequence[PlacedReward], episode: Episode) -> int:
    """Count the trace entries that sit where they should against the actions that must have one.

    Returns:
        0 if each event, and the terminal reward of a row without submit, has one entry on its own last sampled token
        and there is no other entry; below 0: that many have none; above 0: that many entries too many.
    """
    wanted = Counter(_wanted_offsets(episode))
    found = Counter(entry.offset for entry in placed)
    missing = (wanted - found).total()
    return -missing if missing else (found - wanted).total()


def row_errors(scored: Scored, episode: Episode) -> RowErrors:
    """Place a scored row and check it.

    Raises:
        RewardError: a slot's token was not sampled.
    """
    placed = place(scored)
    rewards = token_rewards(placed, episode.response_tokens)
    return RowErrors(
        mapping_sum_error=mapping_sum_error(rewards, scored.breakdown, episode),
        decomposition_error=scored.decomposition_error,
        mapped_slots_minus_events=mapped_slots_minus_events(placed, episode),
    )


def _wanted_offsets(episode: Episode) -> list[int]:
    """Last sampled token of each action, in order, then of a row without submit."""
    if episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR:
        return []
    last_token = {turn.turn_id: turn.response_offset + turn.num_sampled - 1 for turn in episode.generations}
    offsets = [last_token[event.turn_id] for event in episode.events]
    sampled = [end - 1 for start, end in episode.sampled_spans if end > start]
    if sampled and not episode.submit_executed:
        offsets.append(sampled[-1])
    return offsets


def owed_rewards(breakdown: Breakdown, episode: Episode) -> dict[int, list[float]]:
    """Rewards that the breakdown owes, by the response offset of the token that must carry them."""
    offsets = _wanted_offsets(episode)
    values = [
        float(getattr(breakdown, f"explore_reward_{event.explore_k}"))
        for event in episode.events
        if event.kind is EventKind.EXPLORE and offsets
    ]
    owed: dict[int, list[float]] = defaultdict(list)
    for offset, value in zip(offsets, [*values, breakdown.terminal_reward] if offsets else [], strict=True):
        owed[offset].append(value)
    return dict(owed)
