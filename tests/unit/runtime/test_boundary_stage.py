"""The boundary stage reaches every ending that a constrained engine can reach, whatever the policy."""

from collections import Counter

from boundary_stage import LIMITS, stage, terse_policy, uniform_policy, world

from atlas_rl.records.vocabulary import EpisodeState, TerminalReason

REACHABLE = {
    TerminalReason.SUBMITTED,
    TerminalReason.SUBMITTED_OBSERVATION_DROPPED,
    TerminalReason.EXPLORE_OBSERVATION_DROPPED,
    TerminalReason.BUDGET_EXHAUSTED,
    TerminalReason.LENGTH,
    TerminalReason.MAX_TURNS,
}


def test_a_policy_of_random_weights_meets_every_ending_that_the_grammar_leaves_open_and_no_other() -> None:
    counts = Counter(row.episode.terminal_reason for row in stage(uniform_policy))
    assert set(counts) == REACHABLE
    assert min(counts.values()) >= 4, counts


def test_a_policy_that_writes_nothing_but_calls_meets_them_too() -> None:
    assert {row.episode.terminal_reason for row in stage(terse_policy, sessions=1)} == REACHABLE


def test_a_budget_is_exhausted_by_an_observation_that_fits_exactly() -> None:
    exhausted = [row for row in stage(uniform_policy) if row.episode.terminal_reason is TerminalReason.BUDGET_EXHAUSTED]
    assert {len(row.response_ids) for row in exhausted} == {LIMITS.max_response_length}
    assert {row.response_mask[-1] for row in exhausted} == {0}


def test_a_first_turn_of_a_fixed_length_is_met_by_the_rows_of_exactly_one_length() -> None:
    rows = [
        row
        for row in stage(terse_policy, sessions=1)
        if row.episode.terminal_reason is TerminalReason.BUDGET_EXHAUSTED and row.num_turns == 1
    ]
    assert len({row.extra["filler"] for row in rows}) == 1
    assert [row.episode.max_explores for row in rows] == [1, 8]


def test_all_three_states_are_sampled_from() -> None:
    hashes = {generation.grammar_hash for row in stage(uniform_policy) for generation in row.episode.generations}
    assert hashes == {world().grammar[state].sha256 for state in EpisodeState}
    assert len(hashes) == 3
