"""Which sampled tokens of an episode had no alternative, found by replaying its grammars."""

from collections.abc import Sequence

from atlas_rl.grammar.replay import GrammarBook, find_forced
from atlas_rl.records.episode import Episode
from atlas_rl.records.vocabulary import TerminalReason


def mark_forced(episode: Episode, response_ids: Sequence[int], book: GrammarBook) -> Episode:
    """The episode with ``forced`` filled in for each generation that a grammar constrained.

    A token that its grammar forbids was not sampled under it, whatever can be read from it: unless the reader calls it
    a violation already, the episode ends in infrastructure_error, for the engine did not do what it was asked.

    Args:
        episode: As played.
        response_ids: [T] its response.
        book: The benchmark's grammars on the run's tokenizer.

    Raises:
        GrammarError: a generation names a grammar that the book does not know.
    """
    generations, rejected = [], ""
    for generation in episode.generations:
        if generation.grammar_hash is None:
            generations.append(generation)
            continue
        start = generation.response_offset
        ids = response_ids[start : start + generation.num_sampled]
        forced = find_forced(book.walk(generation.grammar_hash), ids)
        if forced.rejected_at is not None and not rejected:
            rejected = (
                f"EngineError: turn {generation.turn_id}: token {ids[forced.rejected_at]} at response offset "
                f"{start + forced.rejected_at} is not legal under grammar {generation.grammar_hash}; the engine did "
                "not enforce it"
            )
        generations.append(generation.model_copy(update={"forced": forced.ranges}))
    update: dict[str, object] = {"generations": tuple(generations)}
    if rejected and not episode.protocol_violations and episode.error is None:
        update |= {"terminal_reason": TerminalReason.INFRASTRUCTURE_ERROR, "error": rejected}
    return episode.model_copy(update=update)
