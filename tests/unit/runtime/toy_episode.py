"""A toy world whose episodes fit on one line: bytes are tokens, and each whole call is one more.

The prompt of the toy row is [BOS, "Q", "?", ASK]; an observation of text "A" is [GLUE, "A", NEXT].
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import StateGrammar
from atlas_rl.records.episode import Sampling
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.runtime.builder import EpisodeResult
from atlas_rl.runtime.episode import run_episode
from atlas_rl.runtime.generate import Generate, GenerateRequest, Sampled
from atlas_rl.runtime.identity import Identity
from atlas_rl.runtime.limits import Limits
from atlas_rl.tasks.benchmark import Benchmark, Tool
from atlas_rl.tasks.row import Candidate, Row

CALL, DONE, END, PAD = 256, 257, 258, 259
BOS, ASK, GLUE, NEXT = 260, 261, 262, 263
EXP, SUB_A, SUB_B, BAD, HE, LLO, HELLO = 270, 271, 272, 273, 274, 275, 276
VOCAB_SIZE = 280
A, B, Q, MARK = ord("A"), ord("B"), ord("Q"), ord("?")

TEXTS = {
    CALL: "<tool_call>",
    DONE: "</tool_call>",
    END: "<|im_end|>",
    PAD: "<|endoftext|>",
    EXP: '\n{"name": "explore", "arguments": {}}\n',
    SUB_A: '\n{"name": "submit", "arguments": {"answer": "A"}}\n',
    SUB_B: '\n{"name": "submit", "arguments": {"answer": "B"}}\n',
    BAD: '\n{"name": "submit", "arguments": {"answer": 7}}\n',
    HE: "he",
    LLO: "llo",
    HELLO: "hello",
}

EXPLORE = (CALL, EXP, DONE, END)
SUBMIT_A = (CALL, SUB_A, DONE, END)
SUBMIT_B = (CALL, SUB_B, DONE, END)


def decode(ids: Sequence[int]) -> str:
    """Text of the ids; an id without text has none."""
    return "".join(TEXTS[i] if i in TEXTS else chr(i) for i in ids)


def encode(text: str) -> list[int]:
    """One id a character: a call that is encoded again is not the ids that were sampled."""
    return [ord(character) for character in text]


@dataclass(frozen=True)
class ToyTemplate:
    """The glue of the toy world."""

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        return [BOS, *encode("".join(message["content"] for message in messages)), ASK]

    def observation_ids(self, text: str) -> list[int]:
        return [GLUE, *encode(text), NEXT]


def tool(name: str, **properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return Tool(name=name, description=f"the {name} tool", parameters=schema)


def toy_benchmark(**changes: Any) -> Benchmark:
    surface: dict[str, Any] = {
        "name": "toy",
        "system_prompt": "",
        "explore": tool("explore"),
        "submission_field": "answer",
        "submit": tool("submit", answer={"type": "string"}),
        "observation": "{answer}",
        "timed_out_observation": "-",
        "grader": "exact",
    }
    return Benchmark(**(surface | changes))


def candidate(answer: str, **changes: Any) -> Candidate:
    facts: dict[str, Any] = {
        "answer": answer,
        "reasoning": f"because {answer}",
        "cost_usd": "0.01",
        "timed_out": False,
        "is_correct": answer == "A",
    }
    return Candidate(**(facts | changes))


def toy_row(answers: str = "BA", **changes: Any) -> Row:
    """A row with one candidate a letter; "A" is right."""
    facts: dict[str, Any] = {
        "question_id": "q1",
        "question": "Q?",
        "benchmark": "toy",
        "permutation_id": "p0",
        "max_explores": len(answers),
        "candidates": tuple(candidate(answer) for answer in answers),
        "ground_truth": "A",
        "data_source": "toy",
    }
    return Row(**(facts | changes))


def identity(**changes: Any) -> Identity:
    facts: dict[str, Any] = {
        "run_id": "run",
        "uid": "u1",
        "session_id": 0,
        "attempt_id": 0,
        "global_steps": 3,
        "run_seed": 11,
    }
    return Identity(**(facts | changes))


def sampled(*ids: int, **changes: Any) -> Sampled:
    """A generation whose logprobs tell the places apart: -0.5, -1.5, ..."""
    facts: dict[str, Any] = {
        "token_ids": ids,
        "logprobs": tuple(-0.5 - place for place in range(len(ids))),
        "weight_version": 3,
        "num_cached_tokens": None,
    }
    return Sampled(**(facts | changes))


@dataclass
class Script:
    """A policy that replays its generations, keeps the requests, and complains when asked for more."""

    replies: Iterator[Sampled | BaseException]
    requests: list[GenerateRequest] = field(default_factory=list)

    async def __call__(self, request: GenerateRequest) -> Sampled:
        self.requests.append(request)
        reply = next(self.replies, None)
        if reply is None:
            raise AssertionError(f"the script has no reply to request {len(self.requests)}")
        if isinstance(reply, BaseException):
            raise reply
        return reply


def script(*replies: tuple[int, ...] | Sampled | BaseException) -> Script:
    return Script(iter([sampled(*reply) if isinstance(reply, tuple) else reply for reply in replies]))


TOKENS = ProtocolTokens(call_begin_id=CALL, call_end_id=DONE, end_of_turn_id=END, stop_ids=(END, PAD))


def grammar(toy: Benchmark | None = None) -> Mapping[EpisodeState, StateGrammar]:
    """The three grammars of a benchmark; no engine reads their tags here."""
    toy = toy or toy_benchmark()
    both = (toy.explore, toy.submit)
    allowed = {
        EpisodeState.FIRST: both[:1] if toy.require_explore_first else both,
        EpisodeState.OPEN: both,
        EpisodeState.EXHAUSTED: both[1:],
    }
    return {
        state: StateGrammar(
            state=state,
            tools=tools,
            structural_tag=f"tag of {state}",
            shortest_calls=(),
            longest_call_bytes=0,
            max_text_tokens=None,
        )
        for state, tools in allowed.items()
    }


async def play_async(
    generate: Generate,
    *,
    row: Row | None = None,
    benchmark: Benchmark | None = None,
    limits: Limits | None = None,
    **changes: Any,
) -> EpisodeResult:
    """Run one episode of the toy row; ``changes`` replace arguments of run_episode."""
    row, benchmark = row or toy_row(), benchmark or toy_benchmark()
    arguments: dict[str, Any] = {
        "grammar": grammar(benchmark),
        "tokens": TOKENS,
        "template": ToyTemplate(),
        "decode": decode,
        "limits": limits or Limits(max_response_length=100),
        "identity": identity(),
        "sampling": Sampling(temperature=1.0, top_p=1.0, top_k=-1, seed=None),
        "vocab_size": VOCAB_SIZE,
    }
    return await run_episode(row=row, benchmark=benchmark, generate=generate, **(arguments | changes))


def play(generate: Generate, **changes: Any) -> EpisodeResult:
    """``play_async`` in a loop of its own."""
    return asyncio.run(play_async(generate, **changes))
