"""A policy that rambles is led into its call while there is room for it, and the record names the bound."""

from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import pytest
from test_episode_on_a_real_tokenizer import LETTER, TOKENIZER, TOKENS
from toy_episode import play, sampled, tool, toy_benchmark, toy_row
from transformers import PreTrainedTokenizerFast

from atlas_rl.grammar.compiled import CompiledStates, compile_states
from atlas_rl.grammar.tags import BenchmarkGrammar, StateGrammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.records.vocabulary import EpisodeState, Finish, TerminalReason
from atlas_rl.runtime.builder import EpisodeResult
from atlas_rl.runtime.generate import GenerateRequest, Sampled
from atlas_rl.runtime.limits import Limits

BENCHMARK = toy_benchmark(submit=tool("submit", **LETTER))
LONGEST = 1 + len('\n{"name": "submit", "arguments": {"answer": "A"}}\n') + 1 + 1


@cache
def grammar(bound: int | None) -> BenchmarkGrammar:
    return BenchmarkGrammar.from_benchmark(BENCHMARK, TOKENS, max_text_tokens=bound)


@cache
def compiled(bound: int | None, name: str) -> CompiledStates:
    one = grammar(bound).by_name(rungs=True)[name]
    return compile_states({one.state: one}, TOKENS, _fast(), vocab_size=len(_fast()))


@cache
def _fast() -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer, eos_token="<|im_end|>")


@dataclass
class Rambler:
    """Writes text for as long as the grammar lets it, then whatever is legal."""

    bound: int | None
    rng: Random
    requests: list[GenerateRequest] = field(default_factory=list)

    async def __call__(self, request: GenerateRequest) -> Sampled:
        self.requests.append(request)
        name, one = next(
            (name, one)
            for name, one in grammar(self.bound).by_name(rungs=True).items()
            if one.structural_tag == request.structural_tag
        )
        matcher = compiled(self.bound, name).matcher(one.state)
        ids: list[int] = []
        (h,) = TOKENIZER.sample("h")
        while not matcher.is_complete and len(ids) < request.max_tokens:
            allowed = matcher.allowed()
            is_text = TOKENS.call_begin_id not in ids and allowed[h]
            ids.append(h if is_text else int(self.rng.choice(allowed.nonzero()[0])))
            assert matcher.accept(ids[-1])
        return sampled(*ids)


def ramble(budget: int, *, bound: int | None, reserve: bool, seed: int = 0) -> tuple[Rambler, EpisodeResult]:
    template, policy = ChatTemplate(TOKENIZER, TOKENS), Rambler(bound, Random(seed))
    result = play(
        policy,
        row=toy_row("BABA"),
        benchmark=BENCHMARK,
        grammar=grammar(bound),
        reserve_call=reserve,
        tokens=TOKENS,
        template=template,
        decode=template.decode,
        limits=Limits(max_response_length=budget),
        vocab_size=len(_fast()),
    )
    return policy, result


@pytest.mark.parametrize("bound", [None, 40, 300])
def test_with_the_reserve_no_generation_is_cut_that_had_room_for_its_longest_call(bound: int | None) -> None:
    reasons = set()
    for budget in range(LONGEST, 900, 23):
        policy, result = ramble(budget, bound=bound, reserve=True, seed=budget)
        for request, generation in zip(policy.requests, result.episode.generations, strict=True):
            assert generation.finish is Finish.EOS or request.max_tokens < LONGEST
        reasons.add(result.episode.terminal_reason)
    assert TerminalReason.SUBMITTED in reasons


@pytest.mark.parametrize("budget", [100, 500, 2000])
def test_without_it_a_rambling_policy_writes_up_to_the_cap(budget: int) -> None:
    _, result = ramble(budget, bound=None, reserve=False)
    assert (result.episode.terminal_reason, result.episode.num_turns) == (TerminalReason.LENGTH, 1)
    assert result.episode.generations[0].grammar_hash == grammar(None)[EpisodeState.FIRST].sha256


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (1, 0),
        (LONGEST, 0),
        (LONGEST + 1, 1),
        (LONGEST + 63, 32),
        (LONGEST + 64, 64),
        (LONGEST + 5000, 4096),
        (10**5, 16384),
    ],
)
def test_the_loosest_bound_that_leaves_room_is_sampled_under_and_recorded(left: int, text: int) -> None:
    _, result = ramble(left, bound=None, reserve=True) if left < 6000 else (None, None)
    chosen = grammar(None)[EpisodeState.FIRST].within(left)
    assert chosen.max_text_tokens == text
    if result is not None:
        assert result.episode.generations[0].grammar_hash == chosen.sha256


def test_a_bound_that_leaves_room_is_left_as_it_is() -> None:
    _, result = ramble(LONGEST + 40, bound=40, reserve=True)
    assert result.episode.generations[0].grammar_hash == grammar(40)[EpisodeState.FIRST].sha256


def test_each_turn_is_bounded_by_what_is_left_of_the_budget() -> None:
    played = (ramble(900, bound=None, reserve=True, seed=seed) for seed in range(30))
    policy, result = next(one for one in played if one[1].episode.num_turns > 2)
    bounds = [_named(request.structural_tag).max_text_tokens for request in policy.requests]
    for request, bound in zip(policy.requests, bounds, strict=True):
        assert bound is not None
        assert bound + LONGEST <= request.max_tokens or bound == 0
        assert 2 * bound + LONGEST > request.max_tokens or bound in (0, 1)
    assert bounds == sorted(bounds, reverse=True)
    assert result.episode.num_turns == len(bounds)


def _named(tag: str | None) -> StateGrammar:
    return next(one for one in grammar(None).by_name(rungs=True).values() if one.structural_tag == tag)
