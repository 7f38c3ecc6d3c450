"""No mini-batch without a token to learn from: its loss would be 0 / 0, and the update is lost."""

from collections.abc import Sequence
from typing import NamedTuple

from atlas_rl.errors import TrainingError


class FilledMiniBatches(NamedTuple):
    """Rows of an update, in the order in which verl cuts them."""

    places: list[int]
    """Places of the rows in the batch."""
    num_left_out: int
    """Mini-batches that no row with a token was left for; their rows are not in ``places``."""


def fill_mini_batches(has_tokens: Sequence[bool], mini_batch_size: int, num_ranks: int) -> FilledMiniBatches:
    """Swap as few rows as it takes for every mini-batch to hold a row with a token to learn from.

    verl gives each rank one run of rows and cuts that run into its parts of the mini-batches. Rows are swapped within
    a rank only, so that ranks keep the tokens that they were balanced with; a batch that needs no swap stays as it is.

        one rank, mini-batches of 2, + has a token:  ++ .. +.  ->  +. +. +.

    Args:
        has_tokens: [rows of the batch] in their order.
        mini_batch_size: Rows of a mini-batch over all ranks.
        num_ranks: Data-parallel ranks.

    Raises:
        TrainingError: the rows do not divide into ranks and mini-batches.
    """
    per_rank, part = len(has_tokens) // num_ranks, mini_batch_size // num_ranks
    if per_rank * num_ranks != len(has_tokens) or part * num_ranks != mini_batch_size or not part or per_rank % part:
        raise TrainingError(
            f"{len(has_tokens)} rows do not divide into mini-batches of {mini_batch_size} on {num_ranks} ranks; make "
            "data.train_batch_size a multiple of ppo_mini_batch_size"
        )
    num_mini_batches = per_rank // part

    def slots(mini_batch: int) -> list[int]:
        first = [rank * per_rank + mini_batch * part for rank in range(num_ranks)]
        return [slot for start in first for slot in range(start, start + part)]

    places = list(range(len(has_tokens)))
    filled = [[slot for slot in slots(number) if has_tokens[slot]] for number in range(num_mini_batches)]
    for number in range(num_mini_batches):
        richest = max(range(num_mini_batches), key=lambda other: len(filled[other]))
        if filled[number] or len(filled[richest]) < 2:
            continue
        giver = filled[richest].pop()
        taker = next(slot for slot in slots(number) if slot // per_rank == giver // per_rank)
        places[giver], places[taker] = places[taker], places[giver]
        filled[number] = [taker]
    is_kept = [bool(rows) for rows in filled]
    kept = [place for slot, place in enumerate(places) if is_kept[slot % per_rank // part]]
    return FilledMiniBatches(kept, is_kept.count(False))
