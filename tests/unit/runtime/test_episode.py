from decimal import Decimal
from typing import Any

import pytest
from toy_episode import (
    ASK,
    BAD,
    BOS,
    CALL,
    DONE,
    END,
    EXP,
    EXPLORE,
    GLUE,
    HE,
    HELLO,
    LLO,
    MARK,
    NEXT,
    SUB_A,
    SUBMIT_A,
    SUBMIT_B,
    A,
    B,
    Q,
    candidate,
    grammar,
    identity,
    play,
    sampled,
    script,
    tool,
    toy_benchmark,
    toy_row,
)

from atlas_rl.errors import DataError
from atlas_rl.records.episode import Event
from atlas_rl.records.vocabulary import EpisodeState, EventKind, Finish, FinishSource, TerminalReason
from atlas_rl.runtime.builder import EpisodeResult
from atlas_rl.runtime.episode import episode_state
from atlas_rl.runtime.limits import Limits


def budget(num_tokens: int, **changes: Any) -> Limits:
    return Limits(max_response_length=num_tokens, **changes)


def ending(result: EpisodeResult) -> tuple[TerminalReason, int | None]:
    return result.episode.terminal_reason, result.episode.terminal_offset


def test_explore_explore_submit_gives_this_stream_mask_and_logprobs() -> None:
    result = play(script(EXPLORE, EXPLORE, SUBMIT_A))
    assert result.prompt_ids == (BOS, Q, MARK, ASK)
    # fmt: off
    assert result.response_ids == (
        # call  name   end   end of turn  observation
        CALL,   EXP,   DONE, END,         GLUE, B, NEXT,
        CALL,   EXP,   DONE, END,         GLUE, A, NEXT,
        CALL,   SUB_A, DONE, END,
    )
    assert result.response_mask == (
        1,      1,     1,    1,           0,    0, 0,
        1,      1,     1,    1,           0,    0, 0,
        1,      1,     1,    1,
    )
    assert result.response_logprobs == (
        -0.5,   -1.5,  -2.5, -3.5,        0,    0, 0,
        -0.5,   -1.5,  -2.5, -3.5,        0,    0, 0,
        -0.5,   -1.5,  -2.5, -3.5,
    )
    # fmt: on
    assert ending(result) == (TerminalReason.SUBMITTED, 17)
    assert result.submitted_answer == "A"


def test_the_record_of_explore_submit_says_who_did_what_where() -> None:
    episode = play(script(EXPLORE, SUBMIT_B)).episode
    assert (episode.prompt_tokens, episode.response_tokens, episode.model_tokens, episode.num_turns) == (4, 11, 8, 2)
    assert (episode.explores_executed, episode.submit_executed, episode.protocol_violations) == (1, True, 0)
    assert (episode.error, episode.weight_versions, episode.submission_field) == (None, (3,), "answer")
    assert episode.candidate_fingerprint == toy_row().candidate_fingerprint
    #                                  C  e  d  e  [  B  ]  C  s  d  e
    assert episode.sampled_spans == ((0, 4), (7, 11))
    explored, submitted = episode.events
    assert explored == Event(
        index=0, turn_id=0, kind=EventKind.EXPLORE, action_start_offset=0, action_end_offset=4,
        explore_k=1, candidate_idx=0, prefix_before=0, prefix_after=1, charged_cost_usd=Decimal("0.01"),
        payload={"answer": "B", "reasoning": "because B", "timed_out": False, "is_correct": False},
        payload_nonempty=True, tool_response="B",
        observation_appended=True, observation_offset=4, observation_length=3,
    )  # fmt: skip
    assert submitted == Event(
        index=1, turn_id=1, kind=EventKind.SUBMIT, action_start_offset=7, action_end_offset=11,
        explore_k=None, candidate_idx=None, prefix_before=1, prefix_after=1, charged_cost_usd=Decimal(0),
        payload={"answer": "B"}, payload_nonempty=True, tool_response="",
        observation_appended=False, observation_offset=None, observation_length=0,
    )  # fmt: skip
    assert [(call.turn_id, call.name, call.arguments, call.valid) for call in episode.proposed_calls] == [
        (0, "explore", {}, True),
        (1, "submit", {"answer": "B"}, True),
    ]


def test_an_action_starts_after_its_free_text_and_ends_with_its_end_token() -> None:
    text = (HE, LLO)
    result = play(script((*text, *EXPLORE), (*text, *SUBMIT_A)))
    #                              0   1    2     3    4     5    6     7  8     9   10   11    12     13    14
    assert result.response_ids == (HE, LLO, CALL, EXP, DONE, END, GLUE, B, NEXT, HE, LLO, CALL, SUB_A, DONE, END)
    assert [(event.action_start_offset, event.action_end_offset) for event in result.episode.events] == [
        (2, 6),
        (11, 15),
    ]


def test_sampled_ids_stay_as_sampled_though_their_text_would_encode_to_others() -> None:
    generate = script((HE, LLO, *EXPLORE), SUBMIT_A)
    result = play(generate)
    assert tuple(generate.requests[1].prompt_ids[4:10]) == (HE, LLO, *EXPLORE)
    assert result.response_ids[:6] == (HE, LLO, *EXPLORE)
    assert HELLO not in result.response_ids


def test_each_request_holds_the_whole_stream_and_asks_for_what_is_left() -> None:
    generate = script(EXPLORE, EXPLORE, SUBMIT_A)
    play(generate, limits=budget(20))
    prompt, first, second = (BOS, Q, MARK, ASK), (*EXPLORE, GLUE, B, NEXT), (*EXPLORE, GLUE, A, NEXT)
    assert [tuple(request.prompt_ids) for request in generate.requests] == [
        prompt,
        prompt + first,
        prompt + first + second,
    ]
    assert [request.max_tokens for request in generate.requests] == [20, 13, 6]
    assert {request.request_id for request in generate.requests} == {"u1_0_a0"}


# --- the response to a submit


@pytest.mark.parametrize(
    ("max_tokens", "reason", "ids", "length"),
    [
        (8, TerminalReason.SUBMITTED, (*SUBMIT_A, GLUE, ord("o"), ord("k"), NEXT), 4),
        (7, TerminalReason.SUBMITTED_OBSERVATION_DROPPED, SUBMIT_A, 0),
        (4, TerminalReason.SUBMITTED_OBSERVATION_DROPPED, SUBMIT_A, 0),
    ],
)
def test_a_submit_response_is_appended_if_it_fits_to_the_token(
    max_tokens: int, reason: TerminalReason, ids: tuple[int, ...], length: int
) -> None:
    result = play(script(SUBMIT_A), benchmark=toy_benchmark(submit_response="ok"), limits=budget(max_tokens))
    assert ending(result) == (reason, 3)
    assert result.response_ids == ids
    assert result.response_mask == (1, 1, 1, 1) + (0,) * length
    [event] = result.episode.events
    assert (event.tool_response, event.observation_appended, event.observation_length) == ("ok", length > 0, length)
    assert result.submitted_answer == "A"


def test_a_submit_that_fills_the_budget_needs_no_room_if_there_is_no_response() -> None:
    result = play(script(SUBMIT_A), limits=budget(4))
    assert ending(result) == (TerminalReason.SUBMITTED, 3)


# --- the response budget


def test_an_observation_that_is_one_token_too_long_is_dropped_but_charged() -> None:
    result = play(script(EXPLORE), limits=budget(6))
    assert ending(result) == (TerminalReason.EXPLORE_OBSERVATION_DROPPED, 3)
    assert result.response_ids == EXPLORE
    assert result.response_mask == (1, 1, 1, 1)
    [event] = result.episode.events
    assert (event.charged_cost_usd, event.tool_response) == (Decimal("0.01"), "B")
    assert (event.observation_appended, event.observation_offset, event.observation_length) == (False, None, 0)
    assert (event.prefix_before, event.prefix_after) == (0, 1)
    assert result.episode.explores_executed == 1


def test_an_observation_that_fits_exactly_is_appended_and_leaves_no_token_to_start_with() -> None:
    result = play(script(EXPLORE), limits=budget(7))
    assert ending(result) == (TerminalReason.BUDGET_EXHAUSTED, 3)
    #                               C  e  d  end [  B  ]
    assert result.response_ids == (*EXPLORE, GLUE, B, NEXT)
    assert result.response_mask == (1, 1, 1, 1, 0, 0, 0)
    assert result.episode.events[0].observation_offset == 4


def test_a_generation_left_with_one_token_is_asked_for_and_cut() -> None:
    generate = script(EXPLORE, (CALL,))
    result = play(generate, limits=budget(8))
    assert [request.max_tokens for request in generate.requests] == [8, 1]
    assert ending(result) == (TerminalReason.LENGTH, 7)
    assert result.response_ids == (*EXPLORE, GLUE, B, NEXT, CALL)
    assert result.response_mask == (1, 1, 1, 1, 0, 0, 0, 1)


@pytest.mark.parametrize("cut", [(HE, LLO), (HE, CALL), (CALL, EXP), (CALL, SUB_A)])
def test_a_call_that_the_budget_cuts_is_never_run(cut: tuple[int, ...]) -> None:
    result = play(script(cut), limits=budget(2))
    assert ending(result) == (TerminalReason.LENGTH, 1)
    assert (result.response_ids, result.response_mask) == (cut, (1, 1))
    assert (result.episode.events, result.submitted_answer, result.episode.protocol_violations) == ((), None, 0)
    [generation] = result.episode.generations
    assert (generation.finish, generation.finish_source) == (Finish.LENGTH, FinishSource.MAX_TOKENS)
    assert [call.valid for call in result.episode.proposed_calls] == [False]


@pytest.mark.parametrize(
    ("cut", "reason"),
    [((CALL, SUB_A, DONE), TerminalReason.SUBMITTED), ((CALL, EXP, DONE), TerminalReason.EXPLORE_OBSERVATION_DROPPED)],
)
def test_a_call_that_is_complete_but_for_the_end_token_runs(cut: tuple[int, ...], reason: TerminalReason) -> None:
    result = play(script(cut), limits=budget(3))
    assert ending(result) == (reason, 2)
    assert (result.response_ids, result.response_mask) == (cut, (1, 1, 1))
    assert [(event.action_start_offset, event.action_end_offset) for event in result.episode.events] == [(0, 3)]


# --- protocol violations


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ((HE, LLO, END), TerminalReason.NO_CALL),
        ((END,), TerminalReason.NO_CALL),
        ((CALL, BAD, DONE, END), TerminalReason.INVALID_CALL),
        ((CALL, HE, DONE, END), TerminalReason.INVALID_CALL),
        ((CALL, EXP, DONE, CALL, SUB_A, DONE, END), TerminalReason.MULTIPLE_CALLS),
    ],
)
def test_a_generation_that_breaks_the_protocol_ends_the_episode_and_runs_nothing(
    ids: tuple[int, ...], reason: TerminalReason
) -> None:
    result = play(script(ids))
    assert ending(result) == (reason, len(ids) - 1)
    assert (result.response_ids, result.response_mask) == (ids, (1,) * len(ids))
    assert (result.episode.protocol_violations, result.episode.events) == (1, ())
    [call] = result.episode.proposed_calls
    assert not call.valid
    assert call.reason


def test_an_explore_that_the_state_does_not_allow_is_an_invalid_call() -> None:
    result = play(script(EXPLORE, EXPLORE, EXPLORE))
    assert ending(result) == (TerminalReason.INVALID_CALL, 17)
    assert result.episode.explores_executed == 2


# --- turns and states


def test_an_episode_without_a_submit_ends_after_its_last_turn() -> None:
    result = play(script(EXPLORE, EXPLORE), limits=budget(100, max_turns=2))
    assert ending(result) == (TerminalReason.MAX_TURNS, 10)
    assert result.response_ids == (*EXPLORE, GLUE, B, NEXT, *EXPLORE, GLUE, A, NEXT)


def test_a_submit_on_the_last_turn_is_a_submit() -> None:
    result = play(script(EXPLORE, SUBMIT_A), limits=budget(100, max_turns=2))
    assert ending(result) == (TerminalReason.SUBMITTED, 10)


def test_turns_and_budget_used_up_at_once_count_as_turns() -> None:
    assert ending(play(script(EXPLORE), limits=budget(7, max_turns=1))) == (TerminalReason.MAX_TURNS, 3)


@pytest.mark.parametrize(
    ("num_explores", "max_explores", "state"),
    [
        (0, 8, EpisodeState.FIRST),
        (1, 8, EpisodeState.OPEN),
        (7, 8, EpisodeState.OPEN),
        (8, 8, EpisodeState.EXHAUSTED),
        (0, 1, EpisodeState.FIRST),
        (1, 1, EpisodeState.EXHAUSTED),
    ],
)
def test_the_state_follows_from_the_explores_that_have_run(
    num_explores: int, max_explores: int, state: EpisodeState
) -> None:
    assert episode_state(num_explores, max_explores) is state


def test_each_generation_runs_under_the_grammar_of_its_state() -> None:
    generate = script(EXPLORE, EXPLORE, SUBMIT_A)
    episode = play(generate).episode
    states = [grammar()[state] for state in (EpisodeState.FIRST, EpisodeState.OPEN, EpisodeState.EXHAUSTED)]
    assert [request.structural_tag for request in generate.requests] == [each.structural_tag for each in states]
    assert [generation.grammar_hash for generation in episode.generations] == [each.sha256 for each in states]
    assert [generation.allowed_tools for generation in episode.generations] == [
        ("explore", "submit"),
        ("explore", "submit"),
        ("submit",),
    ]


def test_a_benchmark_that_requires_an_explore_first_refuses_an_early_submit() -> None:
    result = play(script(SUBMIT_A), benchmark=toy_benchmark(require_explore_first=True))
    assert ending(result) == (TerminalReason.INVALID_CALL, 3)
    assert result.episode.generations[0].allowed_tools == ("explore",)


def test_without_a_grammar_the_tools_are_allowed_and_read_just_the_same() -> None:
    generate = script(EXPLORE, EXPLORE, EXPLORE)
    episode = play(generate, is_constrained=False).episode
    assert [request.structural_tag for request in generate.requests] == [None, None, None]
    assert [generation.grammar_hash for generation in episode.generations] == [None, None, None]
    assert episode.generations[2].allowed_tools == ("submit",)
    assert episode.terminal_reason is TerminalReason.INVALID_CALL


# --- candidates and answers


def test_explores_reveal_the_candidates_in_order_and_charge_each_its_own_price() -> None:
    candidates = (candidate("B", cost_usd="0.1"), candidate("", timed_out=True, cost_usd="0.003"))
    result = play(script(EXPLORE, EXPLORE, SUBMIT_A), row=toy_row(candidates=candidates))
    first, second, _ = result.episode.events
    assert (first.explore_k, first.candidate_idx, first.charged_cost_usd) == (1, 0, Decimal("0.1"))
    assert (second.explore_k, second.candidate_idx, second.charged_cost_usd) == (2, 1, Decimal("0.003"))
    assert (second.tool_response, second.payload_nonempty, second.payload["timed_out"]) == ("-", False, True)


def test_an_answer_that_is_no_text_reaches_the_grader_as_json() -> None:
    numeric = toy_benchmark(submit=tool("submit", answer={"type": "integer"}))
    assert play(script((CALL, BAD, DONE, END)), benchmark=numeric).submitted_answer == "7"


# --- the prompt


def test_a_prompt_at_the_limit_is_played_whole() -> None:
    result = play(script(SUBMIT_A), limits=Limits(max_prompt_length=4))
    assert result.prompt_ids == (BOS, Q, MARK, ASK)


def test_a_prompt_over_the_limit_is_refused_before_anything_is_sampled() -> None:
    generate = script()
    message = r"^row 'q1': its prompt has 4 tokens, limits\.max_prompt_length=3; raise the limit or drop the row$"
    with pytest.raises(DataError, match=message):
        play(generate, limits=Limits(max_prompt_length=3))
    assert generate.requests == []


# --- seeds and engine facts


def seeds(**changes: Any) -> list[int | None]:
    generate = script(EXPLORE, SUBMIT_A)
    play(generate, identity=identity(**changes))
    return [request.sampling.seed for request in generate.requests]


def test_seeds_are_drawn_again_alike_and_differ_by_turn_session_uid_and_step() -> None:
    first, second = seeds()
    assert first != second
    assert seeds() == [first, second]
    assert seeds(attempt_id=1) == [first, second]
    others = [*seeds(session_id=1), *seeds(uid="u2"), *seeds(global_steps=4), *seeds(run_seed=12)]
    assert len({first, second, *others}) == 10


def test_a_run_without_a_seed_leaves_the_draw_to_the_engine() -> None:
    assert seeds(run_seed=None) == [None, None]


def test_the_generations_keep_what_the_engine_said() -> None:
    episode = play(
        script(sampled(*EXPLORE, weight_version=9, num_cached_tokens=4), sampled(*SUBMIT_A, weight_version=1))
    ).episode
    assert episode.weight_versions == (1, 9)
    assert [generation.weight_version for generation in episode.generations] == [9, 1]
    assert [generation.num_cached_tokens for generation in episode.generations] == [4, None]
    assert episode.generations[0].finish_source is FinishSource.STOP_TOKEN


def test_a_long_generation_keeps_its_last_eight_ids_for_audits() -> None:
    episode = play(script((*[HE] * 20, *SUBMIT_A))).episode
    assert episode.generations[0].tail_token_ids == (HE, HE, HE, HE, CALL, SUB_A, DONE, END)
