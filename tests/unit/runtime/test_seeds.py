import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_rl.runtime.seeds import generation_seed

NUMBERS = st.integers(min_value=0, max_value=2**40)


def test_the_seed_of_a_generation_never_changes_between_versions() -> None:
    assert generation_seed(7, "u1", 0, 0, 1) == 299864528


@pytest.mark.parametrize(
    "other", [(8, "u1", 0, 0, 1), (7, "u2", 0, 0, 1), (7, "u1", 1, 0, 1), (7, "u1", 0, 1, 1), (7, "u1", 0, 0, 2)]
)
def test_the_seed_differs_by_run_uid_session_turn_and_step(other: tuple[int, str, int, int, int]) -> None:
    assert generation_seed(*other) != generation_seed(7, "u1", 0, 0, 1)


def test_parts_that_read_the_same_when_joined_give_different_seeds() -> None:
    assert generation_seed(7, "u1", 2, 3, 4) != generation_seed(7, "u", 12, 3, 4)
    assert generation_seed(7, "u", 1, 23, 4) != generation_seed(7, "u", 12, 3, 4)


def test_the_64_generations_of_a_step_have_64_seeds() -> None:
    seeds = {generation_seed(7, uid, session, turn, 1) for uid in "abcd" for session in range(4) for turn in range(4)}
    assert len(seeds) == 64


@settings(deadline=None)
@given(NUMBERS, st.text(), NUMBERS, NUMBERS, NUMBERS)
def test_a_seed_is_a_non_negative_31_bit_integer(run_seed: int, uid: str, session: int, turn: int, step: int) -> None:
    assert 0 <= generation_seed(run_seed, uid, session, turn, step) < 2**31
