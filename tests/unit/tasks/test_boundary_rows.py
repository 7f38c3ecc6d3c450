"""The rows of the boundary stage: observations of every length, one token apart."""

import pytest
from boundary_stage import LIMITS, world

from atlas_rl.errors import ConfigError
from atlas_rl.tasks.boundary import BoundaryConfig, make_boundary_rows
from atlas_rl.tasks.sequential import observation_text


def test_each_length_has_a_row_with_one_candidate_and_one_with_eight() -> None:
    rows = make_boundary_rows(BoundaryConfig(longest_filler=2), seed=0)
    assert [(len(row.candidates[0].reasoning), row.max_explores) for row in rows] == [
        (0, 1), (0, 8), (1, 1), (1, 8), (2, 1), (2, 8),
    ]  # fmt: skip
    assert len({row.question_id for row in rows}) == 6


def test_observations_grow_by_one_token_up_to_more_than_the_budget() -> None:
    here = world()
    lengths = [
        len(here.template.observation_ids(observation_text(here.benchmark, row, 1)))
        for row in here.rows
        if row.max_explores == 1
    ]
    assert lengths == list(range(lengths[0], lengths[0] + len(lengths)))
    assert lengths[0] < 16
    assert lengths[-1] >= LIMITS.max_response_length


def test_rows_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    small = BoundaryConfig(longest_filler=20)
    assert make_boundary_rows(small, seed=3) == make_boundary_rows(small, seed=3)
    assert make_boundary_rows(small, seed=3) != make_boundary_rows(small, seed=4)


@pytest.mark.parametrize("changes", [{"longest_filler": 0}, {"num_candidates": ()}, {"num_candidates": (8, 8)}])
def test_a_configuration_outside_its_range_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^boundary\."):
        BoundaryConfig(**changes)  # type: ignore[arg-type]
