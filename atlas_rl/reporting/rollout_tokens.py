"""What the tokens of one stored episode must keep, recomputed from ids, spans and the run's limits.

Each check yields one line for everything that is wrong; nothing here trusts a property or a validator of the records.
"""

import math
from collections.abc import Iterator

from atlas_rl.records.episode import Event, Generation
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import Finish, FinishSource
from atlas_rl.reporting.rollout_promises import Promises

_NUM_TAIL_TOKENS = 8
"""Sampled ids that a generation's record repeats."""


def sampled_ids(row: Trajectory, generation: Generation) -> tuple[int, ...]:
    """[num_sampled] what the policy sampled in one turn."""
    start = generation.response_offset
    return row.response_ids[start : start + generation.num_sampled]


def tokens_left(generation: Generation, promises: Promises) -> int:
    """Tokens of the response budget behind a generation."""
    return promises.max_response_length - generation.response_offset - generation.num_sampled


def offset_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """Generations and appended observations tile the response without gap or overlap, in the order of the turns."""
    episode = row.episode
    observations = {event.turn_id: event for event in episode.events if event.observation_appended}
    place = 0
    for turn, generation in enumerate(episode.generations):
        if generation.turn_id != turn:
            yield f"generation {turn} has turn_id {generation.turn_id}"
        if generation.response_offset != place:
            yield f"turn {turn} starts at {generation.response_offset}, but {place} tokens stand before it"
        place = generation.response_offset + generation.num_sampled
        observation = observations.pop(generation.turn_id, None)
        if observation is not None:
            if observation.observation_offset != place:
                yield f"observation of turn {turn} starts at {observation.observation_offset}, its turn ends at {place}"
            place += observation.observation_length
    if observations:
        yield f"observations of turns {sorted(observations)} belong to no generation"
    if not place == len(row.response_ids) == episode.response_tokens:
        yield f"turns and observations end at {place} of {len(row.response_ids)} tokens, {episode.response_tokens} said"
    if not len(episode.generations) == len(episode.proposed_calls) == episode.num_turns:
        counts = (len(episode.generations), len(episode.proposed_calls), episode.num_turns)
        yield f"{counts[0]} generations, {counts[1]} proposed calls, num_turns={counts[2]}"


def mask_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """Mask 1, with a log-probability, exactly on sampled tokens."""
    episode = row.episode
    spans = [(one.response_offset, one.response_offset + one.num_sampled) for one in episode.generations]
    sampled = {offset for start, end in spans for offset in range(start, end)}
    wrong = [place for place, bit in enumerate(row.response_mask) if bit != (place in sampled)]
    if wrong:
        yield f"mask is wrong on token {wrong[0]} and {len(wrong) - 1} more"
    if sum(row.response_mask) != episode.model_tokens:
        yield f"mask holds {sum(row.response_mask)} sampled tokens, model_tokens={episode.model_tokens}"
    for place, logprob in enumerate(row.response_logprobs):
        if place in sampled and not (math.isfinite(logprob) and logprob <= 0):
            yield f"sampled token {place} has log-probability {logprob}"
            return
        if place not in sampled and logprob != 0:
            yield f"unsampled token {place} has log-probability {logprob}"
            return


def forced_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """A token without a legal alternative was certain: log-probabilities are over the legal tokens."""
    for one in row.episode.generations:
        logprobs = row.response_logprobs[one.response_offset :][: one.num_sampled]
        for start, end in one.forced or ():
            wrong = [place for place in range(start, end) if logprobs[place] != 0]
            if wrong:
                yield f"turn {one.turn_id}: forced token {wrong[0]} has log-probability {logprobs[wrong[0]]}"
                return


def budget_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """Prompt, response, turns and explores within their limits; every generation was given exactly what was left."""
    episode = row.episode
    limits = (
        ("prompt tokens", max(len(row.prompt_ids), episode.prompt_tokens), promises.max_prompt_length),
        ("response tokens", max(len(row.response_ids), episode.response_tokens), promises.max_response_length),
        ("turns", episode.num_turns, promises.max_turns),
        ("explores", episode.explores_executed, episode.max_explores),
    )
    for what, seen, most in limits:
        if seen > most:
            yield f"{seen} {what}, at most {most}"
    if len(row.prompt_ids) != episode.prompt_tokens or not row.prompt_ids:
        yield f"{len(row.prompt_ids)} prompt ids, prompt_tokens={episode.prompt_tokens}"
    for one in episode.generations:
        left = promises.max_response_length - one.response_offset
        if one.max_tokens != left:
            yield f"turn {one.turn_id} was given max_tokens={one.max_tokens}, {left} tokens were left"
        if not 1 <= one.num_sampled <= one.max_tokens:
            yield f"turn {one.turn_id} sampled {one.num_sampled} of max_tokens={one.max_tokens}"


def finish_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """A generation ends with its only stop id, or at its last token; the record says which, and repeats its tail."""
    for one in row.episode.generations:
        ids = sampled_ids(row, one)
        stops = [place for place, token_id in enumerate(ids) if token_id in promises.stop_ids]
        ended = bool(stops) and stops[-1] == len(ids) - 1
        if stops[: -1 if ended else None]:
            yield f"turn {one.turn_id} went on behind stop id at place {stops[0]} of {len(ids)}"
        if not ended and len(ids) != one.max_tokens:
            yield f"turn {one.turn_id} ends without a stop id after {len(ids)} of max_tokens={one.max_tokens}"
        said = (one.finish, one.finish_source)
        seen = (Finish.EOS, FinishSource.STOP_TOKEN) if ended else (Finish.LENGTH, FinishSource.MAX_TOKENS)
        if said != seen:
            yield f"turn {one.turn_id} is recorded as {'/'.join(said)}, its ids say {'/'.join(seen)}"
        if one.tail_token_ids != ids[-_NUM_TAIL_TOKENS:]:
            yield f"turn {one.turn_id}: tail_token_ids {one.tail_token_ids} are not its last ids"


def drop_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """An observation is where its turn ends, or nowhere; behind one that was dropped comes nothing."""
    episode = row.episode
    ends = {one.turn_id: one.response_offset + one.num_sampled for one in episode.generations}
    for event in episode.events:
        if event.observation_appended:
            if not event.tool_response or event.observation_length < 1:
                yield f"event {event.index}: an observation of {event.observation_length} tokens is appended"
        elif event.observation_length or event.observation_offset is not None:
            yield f"event {event.index}: nothing is appended, yet observation_length={event.observation_length}"
        if is_dropped(event) and not event.turn_id == max(ends) == episode.num_turns - 1:
            yield f"event {event.index}: its observation was dropped, yet turn {max(ends)} follows"
        if is_dropped(event) and len(row.response_ids) != ends[event.turn_id]:
            yield f"event {event.index}: its observation was dropped, yet the response goes on behind its turn"


def is_dropped(event: Event) -> bool:
    """Whether the tool answered and the answer is not in the stream."""
    return bool(event.tool_response) and not event.observation_appended
