"""Every mini-batch of an update has a token to learn from, or is left out and counted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_rl.errors import TrainingError
from atlas_rl.training.mini_batches import fill_mini_batches


def filled(rows: str, mini_batch_size: int, num_ranks: int = 1) -> tuple[str, list[int], int]:
    """The rows as verl will see them, + with and . without a token; their places; mini-batches left out."""
    has_tokens = [row == "+" for row in rows if row != " "]
    found = fill_mini_batches(has_tokens, mini_batch_size, num_ranks)
    return "".join(".+"[has_tokens[place]] for place in found.places), found.places, found.num_left_out


def test_a_batch_whose_mini_batches_all_have_tokens_stays_as_it_is() -> None:
    assert filled("+. .+ ++", 2) == ("+..+++", [0, 1, 2, 3, 4, 5], 0)


def test_a_row_of_the_richest_mini_batch_goes_to_an_empty_one() -> None:
    assert filled("++ .. +.", 2) == ("+.+.+.", [0, 2, 1, 3, 4, 5], 0)


def test_mini_batches_beyond_the_rows_with_tokens_are_left_out() -> None:
    assert filled(".. +. ..", 2) == ("+.", [2, 3], 2)
    assert filled("++ .. .. ..", 2) == ("+.+.", [0, 2, 1, 3], 2)


def test_without_any_token_no_row_is_left() -> None:
    assert filled("....", 2) == ("", [], 2)


def test_rows_stay_on_their_rank() -> None:
    # Mini-batches of 2 take one row of each rank: rows 0 and 3, 1 and 4, 2 and 5; the second has no token.
    assert filled("+.. +.+", 2, 2) == ("+...++", [0, 1, 2, 4, 3, 5], 0)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_as_many_mini_batches_train_as_rows_with_tokens_allow(data: st.DataObject) -> None:
    num_ranks, part, num_mini_batches = (data.draw(st.integers(1, 4)) for _ in range(3))
    per_rank = part * num_mini_batches
    has_tokens = data.draw(st.lists(st.booleans(), min_size=per_rank * num_ranks, max_size=per_rank * num_ranks))
    found = fill_mini_batches(has_tokens, part * num_ranks, num_ranks)
    num_kept = min(num_mini_batches, sum(has_tokens))
    assert found.num_left_out == num_mini_batches - num_kept
    assert len(found.places) == num_kept * part * num_ranks
    kept_per_rank = num_kept * part
    by_rank = [found.places[rank * kept_per_rank : (rank + 1) * kept_per_rank] for rank in range(num_ranks)]
    for rank, places in enumerate(by_rank):
        assert all(place // per_rank == rank for place in places)
    for number in range(num_kept):
        assert any(has_tokens[place] for places in by_rank for place in places[number * part : (number + 1) * part])
    assert {place for place, has in enumerate(has_tokens) if has} <= set(found.places)


@pytest.mark.parametrize(("num_rows", "mini_batch_size", "num_ranks"), [(6, 4, 1), (6, 3, 2), (5, 5, 2), (4, 1, 2)])
def test_rows_that_do_not_divide_are_refused(num_rows: int, mini_batch_size: int, num_ranks: int) -> None:
    with pytest.raises(TrainingError, match=f"{num_rows} rows do not divide into mini-batches of {mini_batch_size}"):
        fill_mini_batches([True] * num_rows, mini_batch_size, num_ranks)
