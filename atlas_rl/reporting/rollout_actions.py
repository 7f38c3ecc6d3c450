"""What the actions of one stored episode must keep: the grammar of each turn, the calls, why the episode ended."""

import json
from collections.abc import Iterator
from typing import Any

from atlas_rl.records.episode import Event, Generation, ProposedCall
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import PROTOCOL_VIOLATIONS, EpisodeState, EventKind, Finish, TerminalReason
from atlas_rl.reporting.rollout_promises import Promises
from atlas_rl.reporting.rollout_tokens import is_dropped, sampled_ids


def grammar_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """Every turn was sampled under the grammar that run.json names for its state, and calls only what that allows."""
    episode = row.episode
    for generation, call in zip(episode.generations, episode.proposed_calls, strict=False):
        explores = sum(event.kind is EventKind.EXPLORE and event.turn_id < call.turn_id for event in episode.events)
        state = EpisodeState.OPEN if explores else EpisodeState.FIRST
        if explores >= episode.max_explores:
            state = EpisodeState.EXHAUSTED
        wanted = promises.grammar_names(row.benchmark, state)
        if generation.grammar_hash not in wanted:
            named = " or ".join(sorted(map(str, wanted)))
            yield f"turn {call.turn_id} in state {state} ran under grammar {generation.grammar_hash}, not {named}"
        if call.valid and call.name not in generation.allowed_tools:
            yield f"turn {call.turn_id} calls {call.name!r}, allowed are {list(generation.allowed_tools)}"


def call_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """A valid call is one closed pair of call tokens at the end of its turn, read as the record says."""
    for generation, call in zip(row.episode.generations, row.episode.proposed_calls, strict=False):
        if call.turn_id != generation.turn_id:
            yield f"call of turn {call.turn_id} stands beside generation {generation.turn_id}"
        ids = sampled_ids(row, generation)
        read = _read(ids, promises, generation.finish)
        # Without a grammar a call in its frame may still break its schema, which no record holds.
        may_be_invalid = read is not None or not promises.is_constrained
        if (call.valid and read is not None) or not (call.valid or may_be_invalid):
            yield f"turn {call.turn_id} is recorded as valid={call.valid}, its ids hold {read or 'one closed call'}"
        if call.valid == bool(call.reason):
            yield f"turn {call.turn_id} has valid={call.valid} and reason {call.reason!r}"
        if call.valid:
            yield from _valid_call_faults(ids, call, promises)


def _valid_call_faults(ids: tuple[int, ...], call: ProposedCall, promises: Promises) -> Iterator[str]:
    frame = {promises.call_begin_id, promises.call_end_id}
    body = ids[:-1] if ids[-1] in promises.stop_ids else ids
    others = [token_id for token_id in body if token_id in promises.control_ids and token_id not in frame]
    if others:
        yield f"turn {call.turn_id} holds control ids {others[:4]} in its text or arguments"
    try:
        spoken: Any = json.loads(call.raw_text)
    except ValueError:
        spoken = None
    if spoken != {"name": call.name, "arguments": call.arguments}:
        yield f"turn {call.turn_id}: its text {call.raw_text[:60]!r} is not the call of {call.name!r} that is recorded"


def event_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """Every valid call ran once and nothing else did; an action spans its call to the end of its turn."""
    episode = row.episode
    ran = [event.turn_id for event in episode.events]
    wanted = [call.turn_id for call in episode.proposed_calls if call.valid]
    if ran != wanted:
        yield f"turns {ran} ran, turns {wanted} hold a valid call"
    by_turn = {one.turn_id: one for one in episode.generations}
    arguments = {call.turn_id: call.arguments or {} for call in episode.proposed_calls}
    explores = 0
    for index, event in enumerate(episode.events):
        if event.index != index:
            yield f"event {index} has index {event.index}"
        if event.turn_id in by_turn:
            yield from _span_faults(row, event, by_turn[event.turn_id], promises)
        is_explore = event.kind is EventKind.EXPLORE
        if (event.prefix_before, event.prefix_after) != (explores, explores + is_explore):
            yield f"event {index} goes from prefix {event.prefix_before} to {event.prefix_after} after {explores}"
        explores += is_explore
        if is_explore and (event.explore_k, event.candidate_idx) != (explores, explores - 1):
            yield f"event {index} is explore {event.explore_k} of candidate {event.candidate_idx}, it is no. {explores}"
        if not is_explore:
            yield from _submit_faults(event, arguments.get(event.turn_id, {}), episode.submission_field)
    if explores != episode.explores_executed or episode.submit_executed != any(_submits(row)):
        yield f"explores_executed={episode.explores_executed}, submit_executed={episode.submit_executed} are not so"


def _span_faults(row: Trajectory, event: Event, generation: Generation, promises: Promises) -> Iterator[str]:
    end = generation.response_offset + generation.num_sampled
    ids = sampled_ids(row, generation)
    begin = ids.index(promises.call_begin_id) if promises.call_begin_id in ids else -1
    start = generation.response_offset + begin
    if begin < 0 or (event.action_start_offset, event.action_end_offset) != (start, end):
        yield (
            f"event {event.index} acts on [{event.action_start_offset}, {event.action_end_offset}), the call of turn "
            f"{event.turn_id} spans [{start}, {end})"
        )


def _submit_faults(event: Event, arguments: dict[str, Any], field: str) -> Iterator[str]:
    value = arguments.get(field)
    answer = value if isinstance(value, str) else json.dumps(value)
    if field not in arguments or event.payload != {"answer": answer}:
        yield f"event {event.index} submits {event.payload}, the call has {field}={value!r}"


def _submits(row: Trajectory) -> Iterator[bool]:
    return (event.kind is EventKind.SUBMIT for event in row.episode.events)


def terminal_faults(row: Trajectory, promises: Promises) -> Iterator[str]:
    """The terminal reason is the one that ids, events and limits give; its offset is the last sampled token."""
    episode = row.episode
    wanted = _reason(row, promises)
    if episode.terminal_reason is not wanted:
        yield f"it ended in {episode.terminal_reason}, its record says {wanted or 'that it should have gone on'}"
    last = episode.generations[-1] if episode.generations else None
    offset = last.response_offset + last.num_sampled - 1 if last else None
    if episode.terminal_offset != offset:
        yield f"terminal_offset={episode.terminal_offset}, the last sampled token is {offset}"
    if episode.protocol_violations != (episode.terminal_reason in PROTOCOL_VIOLATIONS):
        yield f"protocol_violations={episode.protocol_violations} of an episode that ended in {episode.terminal_reason}"
    if episode.error is not None:
        yield f"it names an error: {episode.error}"
    versions = tuple(sorted({one.weight_version for one in episode.generations}))
    if episode.weight_versions != versions:
        yield f"weight_versions={episode.weight_versions}, its generations name {versions}"


def _reason(row: Trajectory, promises: Promises) -> TerminalReason | None:
    """Why the episode must have ended; None: it has not."""
    episode = row.episode
    if not episode.generations:
        return TerminalReason.BUDGET_EXHAUSTED if promises.max_response_length == 0 else None
    last = episode.generations[-1]
    event = next((event for event in episode.events if event.turn_id == last.turn_id), None)
    if event is None:
        return _read(sampled_ids(row, last), promises, last.finish) or TerminalReason.INVALID_CALL
    if event.kind is EventKind.SUBMIT:
        return TerminalReason.SUBMITTED_OBSERVATION_DROPPED if is_dropped(event) else TerminalReason.SUBMITTED
    if is_dropped(event):
        return TerminalReason.EXPLORE_OBSERVATION_DROPPED
    if len(episode.generations) == promises.max_turns:
        return TerminalReason.MAX_TURNS
    return TerminalReason.BUDGET_EXHAUSTED if len(row.response_ids) == promises.max_response_length else None


def _read(ids: tuple[int, ...], promises: Promises, finish: Finish) -> TerminalReason | None:
    """What the call tokens of a turn alone decide; None: there is one closed call at its end."""
    body = ids[:-1] if ids and ids[-1] in promises.stop_ids else ids
    begins = body.count(promises.call_begin_id)
    if not begins:
        return TerminalReason.NO_CALL if finish is Finish.EOS else TerminalReason.LENGTH
    if begins > 1:
        return TerminalReason.MULTIPLE_CALLS
    text, call = body[: body.index(promises.call_begin_id)], body[body.index(promises.call_begin_id) :]
    if promises.call_end_id not in call:
        return TerminalReason.INVALID_CALL if finish is Finish.EOS else TerminalReason.LENGTH
    is_framed = promises.call_end_id not in text and call.index(promises.call_end_id) == len(call) - 1
    return None if is_framed else TerminalReason.INVALID_CALL
