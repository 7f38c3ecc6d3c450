"""The reward of one stored episode: scored and placed again, it is what is stored, and the invariants are 0."""

from collections.abc import Iterator

from atlas_rl.records.trajectory import Trajectory
from atlas_rl.reporting.rollout_promises import Promises
from atlas_rl.rewards.invariants import mapped_slots_minus_events, mapping_sum_error
from atlas_rl.rewards.placement import place, reward_score, token_rewards
from atlas_rl.rewards.recorded_potential import of_record
from atlas_rl.rewards.score import Scored, score


def scored_again(row: Trajectory, promises: Promises) -> Scored:
    """What the record and the run's reward give.

    Raises:
        RewardError: the record cannot be scored.
    """
    return score(
        row.episode,
        row.grade,
        config=promises.reward,
        potential=of_record(promises.potential, row.extra),
        subset=row.reward.subset,
    )


def score_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """The stored breakdown, trace and sum are those that the record earns."""
    scored = scored_again(row, promises)
    placed = place(scored)
    if scored.breakdown != row.reward:
        names = [name for name, value in scored.breakdown if getattr(row.reward, name) != value]
        yield f"breakdown stored with other {names} than the record earns"
    if placed != row.reward_trace:
        yield f"reward_trace {list(row.reward_trace)} is not {list(placed)}"
    if row.reward_score != reward_score(placed):
        yield f"reward_score={row.reward_score}, its trace adds up to {reward_score(placed)}"


def mapping_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """Every token carries exactly the reward that the breakdown owes it, and each action has one entry."""
    rewards = token_rewards(row.reward_trace, len(row.response_ids))
    error = mapping_sum_error(rewards, row.reward, row.episode)
    if error != 0:
        yield f"mapping_sum_error {error}"
    slots = mapped_slots_minus_events(row.reward_trace, row.episode)
    if slots != 0:
        yield f"mapped_slots_minus_events {slots}"
    unsampled = [entry.offset for entry in row.reward_trace if not row.response_mask[entry.offset]]
    if unsampled:
        yield f"rewards on unsampled tokens {unsampled}"


def decomposition_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """The slots add up to the final reward less the start potential."""
    error = scored_again(row, promises).decomposition_error
    if error != 0:
        yield f"decomposition_error {error}"
