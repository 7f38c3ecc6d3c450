from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from toy_episode import (
    BAD,
    CALL,
    DONE,
    END,
    EXPLORE,
    HE,
    LLO,
    SUBMIT_A,
    SUBMIT_B,
    ToyTemplate,
    play,
    sampled,
    toy_benchmark,
    toy_row,
)

from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.episode import Episode
from atlas_rl.records.trajectory import Grade, Trajectory
from atlas_rl.records.vocabulary import (
    CUT_BY_LENGTH_CAP,
    PROTOCOL_VIOLATIONS,
    EventKind,
    Finish,
    Partition,
    TerminalReason,
    Verdict,
)
from atlas_rl.runtime.builder import EpisodeResult
from atlas_rl.runtime.generate import GenerateRequest, Sampled
from atlas_rl.runtime.limits import Limits

NO_REWARD = {name: "" if name == "subset" else 0 for name in Breakdown.model_fields}
TEXT = st.lists(st.sampled_from([HE, LLO, ord("<"), ord("x")]), max_size=5).map(tuple)
ACTION = st.one_of(
    st.just(EXPLORE),
    st.just(EXPLORE),
    st.just(EXPLORE),
    st.just(SUBMIT_A),
    st.just(SUBMIT_B),
    st.just((END,)),
    st.just((CALL, BAD, DONE, END)),
    st.just((*EXPLORE[:-1], *SUBMIT_A)),
)
FAULT = st.sampled_from([RuntimeError("boom"), "empty", "short of logprobs", "too long"])
TURN = st.tuples(TEXT, ACTION).map(lambda parts: parts[0] + parts[1])
TURNS = st.lists(st.one_of(TURN, TURN, TURN, TURN, FAULT), min_size=9, max_size=9)


@dataclass
class RandomPolicy:
    """Plays drawn turns as an engine does: cut at max_tokens, logprobs that tell all sampled tokens apart."""

    turns: list[Any]
    requests: list[GenerateRequest] = field(default_factory=list)
    replies: list[Sampled] = field(default_factory=list)

    async def __call__(self, request: GenerateRequest) -> Sampled:
        turn = self.turns[len(self.requests)]
        self.requests.append(request)
        if isinstance(turn, Exception):
            raise turn
        if turn == "empty":
            return sampled()
        if turn == "short of logprobs":
            return sampled(*EXPLORE, logprobs=(-1.0,))
        if turn == "too long":
            return sampled(*[HE] * (request.max_tokens + 1))
        ids = turn[: request.max_tokens]
        reply = sampled(*ids, logprobs=tuple(-1.0 - len(self.replies) - place / 64 for place in range(len(ids))))
        self.replies.append(reply)
        return reply


def trajectory(result: EpisodeResult) -> Trajectory:
    episode = result.episode
    same = ("run_id", "uid", "session_id", "attempt_id", "benchmark", "question_id", "permutation_id")
    return Trajectory(
        **{name: getattr(episode, name) for name in (*same, "candidate_fingerprint", "num_turns")},
        data_source="toy",
        partition=Partition.TRAIN,
        global_steps=3,
        prompt_ids=result.prompt_ids,
        response_ids=result.response_ids,
        response_logprobs=result.response_logprobs,
        response_mask=result.response_mask,
        reward_score=0.0,
        reward=Breakdown.model_validate(NO_REWARD),
        reward_trace=(),
        ground_truth="A",
        grade=Grade(grader="exact", version="1", verdict=Verdict.NO_ANSWER, seconds=0, detail=""),
        written_at="2026-01-01T00:00:00.000000Z",
        episode=episode,
    )


@settings(deadline=None)
@given(
    turns=TURNS,
    answers=st.text(alphabet="AB", min_size=1, max_size=8),
    max_response_length=st.integers(min_value=1, max_value=70),
    max_turns=st.integers(min_value=1, max_value=9),
    submit_response=st.sampled_from(["", "ok"]),
)
def test_whatever_the_policy_does_the_record_is_what_happened(
    turns: list[Any], answers: str, max_response_length: int, max_turns: int, submit_response: str
) -> None:
    policy = RandomPolicy(turns)
    limits = Limits(max_response_length=max_response_length, max_turns=max_turns)
    result = play(policy, row=toy_row(answers), benchmark=toy_benchmark(submit_response=submit_response), limits=limits)
    check_stream(policy, result)
    check_offsets(result)
    check_ending(policy, result, limits)
    assert Episode.model_validate(result.episode.model_dump()) == result.episode
    trajectory(result)


def check_stream(policy: RandomPolicy, result: EpisodeResult) -> None:
    stream, mask = result.response_ids, result.response_mask
    on_mask = [place for place, bit in enumerate(mask) if bit]
    assert [stream[place] for place in on_mask] == [token for reply in policy.replies for token in reply.token_ids]
    assert [result.response_logprobs[place] for place in on_mask] == [
        logprob for reply in policy.replies for logprob in reply.logprobs
    ]
    assert all(logprob == 0.0 for logprob, bit in zip(result.response_logprobs, mask, strict=True) if not bit)
    for (before, after), reply in zip(pairwise(policy.requests), policy.replies, strict=False):
        so_far = (*before.prompt_ids, *reply.token_ids)
        assert tuple(after.prompt_ids[: len(so_far)]) == so_far
    whole = result.prompt_ids + stream
    assert all(tuple(request.prompt_ids) == whole[: len(request.prompt_ids)] for request in policy.requests)


def check_offsets(result: EpisodeResult) -> None:
    episode, mask = result.episode, result.response_mask
    spans = dict(enumerate(episode.sampled_spans))
    observed = 0
    for event in episode.events:
        start, end = spans[event.turn_id]
        assert start <= event.action_start_offset < event.action_end_offset == end
        assert result.response_ids[event.action_start_offset] == CALL
        assert mask[event.action_end_offset - 1] == 1
        if event.observation_offset is None:
            continue
        end = event.observation_offset + event.observation_length
        assert event.observation_offset == event.action_end_offset
        assert mask[event.observation_offset : end] == (0,) * event.observation_length
        assert list(result.response_ids[event.observation_offset : end]) == ToyTemplate().observation_ids(
            event.tool_response
        )
        observed += event.observation_length
    assert episode.response_tokens == episode.model_tokens + observed == len(result.response_ids)


def check_ending(policy: RandomPolicy, result: EpisodeResult, limits: Limits) -> None:
    episode = result.episode
    reason = episode.terminal_reason
    assert episode.response_tokens <= limits.max_response_length
    assert episode.num_turns == len(policy.replies) <= limits.max_turns
    sampled_places = [place for place, bit in enumerate(result.response_mask) if bit]
    assert episode.terminal_offset == (sampled_places[-1] if sampled_places else None)
    is_submitted = reason in {TerminalReason.SUBMITTED, TerminalReason.SUBMITTED_OBSERVATION_DROPPED}
    assert is_submitted == episode.submit_executed == (result.submitted_answer is not None)
    assert episode.protocol_violations == (reason in PROTOCOL_VIOLATIONS)
    assert (episode.error is not None) == (reason is TerminalReason.INFRASTRUCTURE_ERROR)
    assert (reason is TerminalReason.INFRASTRUCTURE_ERROR) == (len(policy.requests) > len(policy.replies))
    if reason is TerminalReason.LENGTH:
        assert episode.generations[-1].finish is Finish.LENGTH
    if reason in CUT_BY_LENGTH_CAP:
        assert not episode.submit_executed
    explores = [event for event in episode.events if event.kind is EventKind.EXPLORE]
    assert [event.explore_k for event in explores] == list(range(1, len(explores) + 1))
    assert len(explores) <= episode.max_explores
