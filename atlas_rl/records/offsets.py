"""Where the pieces of an episode lie: in order, apart, and within the row."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atlas_rl.records.episode import Episode, Event, Generation
    from atlas_rl.records.scoring import ScoringEpisode, ScoringEvent, ScoringGeneration


def check_offsets(episode: "Episode | ScoringEpisode") -> None:
    """Refuse offsets that overlap or leave the row.

    Raises:
        ValueError: generations, actions or observations do; the message names the trajectory and the field.
    """
    where = f"episode {episode.uid}_{episode.session_id}"
    room = _room_of_turns(episode, where)
    for event in episode.events:
        _check_event(event, room, where)


def _room_of_turns(episode: "Episode | ScoringEpisode", where: str) -> dict[int, tuple[int, int, int]]:
    """By turn: start and end of its sampled tokens, and where the next turn or the row's end leaves no more room."""
    room: dict[int, tuple[int, int, int]] = {}
    end, sampled = 0, 0
    generations: Sequence[Generation | ScoringGeneration] = episode.generations
    starts = [generation.response_offset for generation in generations]
    for generation, following in zip(generations, [*starts[1:], episode.response_tokens], strict=False):
        start, count = generation.response_offset, generation.num_sampled
        if start < end:
            raise ValueError(
                f"{where}: generation {generation.turn_id} starts at {start}, inside the one before, which ends at "
                f"{end}"
            )
        end = start + count
        sampled += count
        room[generation.turn_id] = (start, end, following)
    if sampled != episode.model_tokens:
        raise ValueError(f"{where}: model_tokens={episode.model_tokens} but the generations sampled {sampled}")
    if end > episode.response_tokens:
        raise ValueError(f"{where}: generations end at {end}, beyond response_tokens={episode.response_tokens}")
    return room


def _check_event(event: "Event | ScoringEvent", room: dict[int, tuple[int, int, int]], where: str) -> None:
    """An action lies in its turn; its observation behind it, in front of the next turn and within the row."""
    turn = room.get(event.turn_id)
    if turn is None or not turn[0] <= event.action_start_offset < event.action_end_offset <= turn[1]:
        raise ValueError(
            f"{where}: event {event.index} acts on [{event.action_start_offset}, {event.action_end_offset}), "
            f"outside the sampled tokens of turn {event.turn_id}"
        )
    begin = event.observation_offset
    if begin is not None and not turn[1] <= begin <= begin + event.observation_length <= turn[2]:
        raise ValueError(
            f"{where}: event {event.index} has observation_offset={begin}, observation_length="
            f"{event.observation_length}, but only [{turn[1]}, {turn[2]}) is free behind its turn"
        )
