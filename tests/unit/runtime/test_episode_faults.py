import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from toy_episode import (
    BOS,
    END,
    EXPLORE,
    GLUE,
    HE,
    NEXT,
    SUBMIT_A,
    VOCAB_SIZE,
    B,
    ToyTemplate,
    grammar,
    play,
    play_async,
    sampled,
    script,
    toy_benchmark,
)

from atlas_rl.errors import DataError
from atlas_rl.records.vocabulary import EpisodeState, TerminalReason
from atlas_rl.runtime.generate import GenerateRequest, Sampled

NAN = float("nan")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (RuntimeError("engine\n  died"), "EngineError: generation of turn 1: RuntimeError: engine died"),
        (TimeoutError(), "EngineError: generation of turn 1: TimeoutError: no message"),
        (DataError("not\nmine"), "DataError: not mine"),
        (sampled(), "EngineError: engine sampled no token of 93 asked for"),
        (sampled(HE), "EngineError: engine stopped after 1 of 93 tokens on id 274"),
        (sampled(*[HE] * 94), "EngineError: engine sampled 94 tokens of 93 asked for"),
        (sampled(END, HE, END), "EngineError: engine went on after stop id 258 at place 0 of 3"),
        (sampled(HE, -1, END), "EngineError: engine sampled id -1 at place 1"),
        (sampled(VOCAB_SIZE, END), "EngineError: engine sampled id 280 at place 0, not an int in [0, 280)"),
        (sampled(HE, END, logprobs=(-0.5,)), "EngineError: engine gave 2 ids but 1 logprobs"),
        (sampled(HE, END, logprobs=(-0.5, NAN)), "EngineError: engine gave logprob nan for id 258 at place 1"),
        (sampled(*SUBMIT_A, weight_version=-1), "EngineError: generation of turn 1: ValidationError: "),
        (sampled(*SUBMIT_A, weight_version=None), "EngineError: generation of turn 1: ValidationError: "),
    ],
)
def test_a_fault_of_the_engine_ends_the_episode_and_keeps_what_was_sampled_before(
    reply: Sampled | BaseException, error: str
) -> None:
    result = play(script(EXPLORE, reply))
    episode = result.episode
    assert (episode.terminal_reason, episode.terminal_offset) == (TerminalReason.INFRASTRUCTURE_ERROR, 3)
    assert episode.error is not None
    assert episode.error.startswith(error)
    assert "\n" not in episode.error
    #                               C  e  d  end [  B  ]
    assert result.response_ids == (*EXPLORE, GLUE, B, NEXT)
    assert result.response_mask == (1, 1, 1, 1, 0, 0, 0)
    assert (episode.num_turns, len(episode.proposed_calls), len(episode.events)) == (1, 1, 1)
    assert (episode.protocol_violations, result.submitted_answer) == (0, None)


def test_an_engine_that_answers_something_else_altogether_is_a_fault() -> None:
    async def generate(request: GenerateRequest) -> Any:
        return None

    episode = play(generate).episode
    assert episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR
    assert (episode.terminal_offset, episode.model_tokens, episode.weight_versions) == (None, 0, ())
    assert episode.error == (
        "EngineError: generation of turn 0: AttributeError: 'NoneType' object has no attribute 'token_ids'"
    )


def test_an_engine_that_edits_its_prompt_cannot_touch_the_stream() -> None:
    async def generate(request: GenerateRequest) -> Sampled:
        request.prompt_ids.clear()  # type: ignore[attr-defined]
        return sampled(*SUBMIT_A)

    result = play(generate)
    assert result.episode.error == (
        "EngineError: generation of turn 0: AttributeError: 'tuple' object has no attribute 'clear'"
    )
    assert result.prompt_ids[0] == BOS


@dataclass(frozen=True)
class BrokenTemplate(ToyTemplate):
    """A template that cannot encode one of its two texts."""

    breaks: str

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        if self.breaks == "prompt":
            raise ValueError("no such role")
        return super().prompt_ids(messages, tools)

    def observation_ids(self, text: str) -> list[int]:
        if self.breaks == "observation":
            raise ValueError("no bytes")
        return super().observation_ids(text)


def test_a_prompt_that_cannot_be_encoded_gives_an_empty_episode() -> None:
    result = play(script(), template=BrokenTemplate("prompt"))
    assert result.episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR
    assert result.episode.error == "GrammarError: prompt: ValueError: no such role"
    assert (result.prompt_ids, result.response_ids) == ((), ())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (
            {"template": BrokenTemplate("observation")},
            "ToolError: tool 'explore' of turn 0: ValueError: no bytes",
        ),
        (
            {"benchmark": toy_benchmark(observation="{nothing}")},
            "ToolError: tool 'explore' of turn 0: KeyError: 'nothing'",
        ),
    ],
)
def test_a_tool_that_fails_leaves_its_call_but_no_event_and_no_charge(changes: dict[str, Any], error: str) -> None:
    result = play(script(EXPLORE), **changes)
    episode = result.episode
    assert (episode.terminal_reason, episode.error) == (TerminalReason.INFRASTRUCTURE_ERROR, error)
    assert (result.response_ids, result.response_mask) == (EXPLORE, (1, 1, 1, 1))
    assert [call.valid for call in episode.proposed_calls] == [True]
    assert (episode.events, episode.explores_executed, episode.terminal_offset) == ((), 0, 3)


def test_a_submit_without_its_answer_is_the_fault_of_the_benchmark() -> None:
    loose = toy_benchmark(submission_field="final")
    episode = play(script(SUBMIT_A), benchmark=loose).episode
    assert episode.error == (
        "ToolError: submit of benchmark 'toy' has no argument 'final' in ['answer']; "
        "list it under required in the submit schema"
    )
    assert not episode.submit_executed


def test_a_generation_that_cannot_be_read_is_kept_without_a_call() -> None:
    def broken_decode(ids: Sequence[int]) -> str:
        raise LookupError("no such id")

    result = play(script(EXPLORE), decode=broken_decode)
    assert result.episode.error == "GrammarError: reading of turn 0: LookupError: no such id"
    assert (result.response_ids, result.episode.proposed_calls) == (EXPLORE, ())


def test_a_missing_grammar_is_a_fault_of_the_episode_that_needs_it() -> None:
    result = play(script(), grammar={EpisodeState.OPEN: grammar()[EpisodeState.OPEN]})
    assert result.episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR
    assert result.episode.error == "RecordError: episode: KeyError: <EpisodeState.FIRST: 'first'>"


@pytest.mark.parametrize("stop", [asyncio.CancelledError(), KeyboardInterrupt()])
def test_cancellation_and_interrupts_are_no_faults_and_pass(stop: BaseException) -> None:
    async def cancelled() -> None:
        with pytest.raises(type(stop)):
            await play_async(script(stop))

    asyncio.run(cancelled())


def test_cancelling_the_task_cancels_the_generation() -> None:
    async def hang(request: GenerateRequest) -> Sampled:
        await asyncio.Event().wait()
        return sampled(*SUBMIT_A)

    async def cancel() -> None:
        task = asyncio.ensure_future(play_async(hang))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


def test_one_fault_does_not_touch_the_episodes_beside_it() -> None:
    async def both() -> list[TerminalReason]:
        results = await asyncio.gather(play_async(script(RuntimeError("x"))), play_async(script(EXPLORE, SUBMIT_A)))
        return [result.episode.terminal_reason for result in results]

    assert asyncio.run(both()) == [TerminalReason.INFRASTRUCTURE_ERROR, TerminalReason.SUBMITTED]
