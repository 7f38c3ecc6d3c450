"""What the grammar accepts is read as one call with equal arguments; what is mutated ends for the reason it should.

The oracle knows neither the reader nor the tags: it looks at ids, at bytes, at ``json`` and at ``jsonschema``.
"""

import json
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from grammar_tools import CODE, LETTER, MIXED, NUMBER, SHORT, benchmark
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_tokenizer import CORPUS, toy_tokenizer

from atlas_rl.grammar.compiled import CompiledStates, compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.reading import Reading, read_generation
from atlas_rl.grammar.tags import BenchmarkGrammar, StateGrammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.models.tokenizer import train_tokenizer
from atlas_rl.records.vocabulary import EpisodeState, Finish, TerminalReason

BENCHMARKS = {
    "letter": benchmark(LETTER, text=0),
    "letter_after_text": benchmark(LETTER, text=None),
    "number": benchmark(NUMBER, text=30, first=True),
    "short": benchmark(SHORT, text=6),
    "code": benchmark(CODE, text=None),
    "mixed": benchmark(MIXED, text=10),
}
MOST = 160
"""Tokens of a walk at most; longer ones are cut there, as an engine cuts them."""
_TEXTS = [
    *CORPUS,
    'if a < b and c << 2:\\n\\treturn [\\"é\\", 数]\\n',
    "-1,024.5 17 true null final candidate sure kind",
]


@dataclass(frozen=True)
class Bench:
    """One tokenizer."""

    tokenizer: Any
    tokens: ProtocolTokens
    template: ChatTemplate
    vocab_size: int

    def __hash__(self) -> int:
        return id(self)


@cache
def bench(name: str) -> Bench:
    tokenizer = toy_tokenizer() if name == "toy" else train_tokenizer(_TEXTS * 3, vocab_size=700)
    tokens = ProtocolTokens.from_tokenizer(tokenizer, extra_stop_ids=[tokenizer.pad_token_id])
    return Bench(tokenizer, tokens, ChatTemplate(tokenizer, tokens), vocab_size=704)


@cache
def grammars(name: str, spec: str) -> BenchmarkGrammar:
    return BenchmarkGrammar.from_benchmark(BENCHMARKS[spec], bench(name).tokens)


@cache
def compiled(name: str, spec: str, state: EpisodeState, rung: int) -> tuple[StateGrammar, CompiledStates]:
    """A state's grammar, or one of its rungs."""
    here, grammar = bench(name), grammars(name, spec)[state]
    chosen = (grammar, *grammar.rungs)[min(rung, len(grammar.rungs))]
    return chosen, compile_states({state: chosen}, here.tokens, here.tokenizer, vocab_size=here.vocab_size)


@cache
def token_bytes(name: str) -> list[bytes]:
    """[V] bytes of each token, as XGrammar has them."""
    grammar, states = compiled(name, "letter", EpisodeState.OPEN, 0)
    return list(states.grammar(grammar.state).tokenizer_info.decoded_vocab)


@cache
def closers(name: str) -> tuple[int, ...]:
    here = bench(name)
    quotes = [i for text, i in sorted(here.tokenizer.get_vocab().items()) if text.startswith('"')]
    return (here.tokens.call_begin_id, *quotes)


def walk(name: str, states: CompiledStates, state: EpisodeState, rng: Random) -> list[int]:
    """Random legal tokens up to the end of the turn, or to the cut."""
    matcher, ids, hurry = states.matcher(state), [], rng.choice([0.1, 0.4, 0.9])
    while not matcher.is_complete and len(ids) < MOST:
        allowed = matcher.allowed()
        near = [token for token in closers(name) if allowed[token]]
        ids.append(rng.choice(near) if near and rng.random() < hurry else int(rng.choice(np.flatnonzero(allowed))))
        assert matcher.accept(ids[-1])
    return ids


def read(here: Bench, grammar: StateGrammar, ids: list[int]) -> Reading:
    finish = Finish.EOS if ids and ids[-1] in here.tokens.stop_ids else Finish.LENGTH
    return read_generation(
        ids, tokens=here.tokens, tools=grammar.tools, decode=here.template.decode, finish=finish, turn_id=0
    )


def parsed(name: str, grammar: StateGrammar, payload: list[int]) -> dict[str, Any] | None:
    """The call that the tokens between the call tokens spell, if it may run; None: it may not."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    vocabulary = token_bytes(name)
    try:
        text = b"".join(vocabulary[i] for i in payload).decode("utf-8", errors="strict")
        assert "\ufffd" not in text
        call = json.loads(text, object_pairs_hook=unique)
        assert set(call) == {"name", "arguments"}
        (schema,) = [tool.parameters for tool in grammar.tools if tool.name == call["name"]]
        jsonschema.validate(call["arguments"], schema)
    except (UnicodeDecodeError, ValueError, AssertionError, TypeError, jsonschema.ValidationError):
        return None
    return call


def oracle(name: str, grammar: StateGrammar, ids: list[int]) -> tuple[TerminalReason | None, dict[str, Any] | None]:
    """Why a generation ends its episode, and the call that runs where it does not."""
    tokens = bench(name).tokens
    has_ended = bool(ids) and ids[-1] in tokens.stop_ids
    body = ids[:-1] if has_ended else ids
    begins, ends = (
        [place for place, i in enumerate(body) if i == mark] for mark in (tokens.call_begin_id, tokens.call_end_id)
    )
    if not begins:
        return (TerminalReason.NO_CALL if has_ended else TerminalReason.LENGTH), None
    if len(begins) > 1:
        return TerminalReason.MULTIPLE_CALLS, None
    if not has_ended and not any(end > begins[0] for end in ends):
        return TerminalReason.LENGTH, None
    if ends != [len(body) - 1] or ends[0] < begins[0]:
        return TerminalReason.INVALID_CALL, None
    call = parsed(name, grammar, body[begins[0] + 1 : ends[0]])
    return (TerminalReason.INVALID_CALL, None) if call is None else (None, call)


def mutate(here: Bench, ids: list[int], rng: Random) -> list[int]:
    """Delete, insert, swap, replace or truncate; then stop where an engine would have stopped."""
    ids = list(ids)
    control = [*here.tokens.control_ids, *here.tokens.stop_ids]
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(ids) + 1)
        token = rng.choice(control) if rng.random() < 0.4 else rng.randrange(here.vocab_size - 4)
        other = rng.randrange(len(ids) + 1)
        match rng.choice(["delete", "insert", "swap", "replace", "truncate"]):
            case "delete":
                del ids[place : place + rng.randint(1, 3)]
            case "insert":
                ids.insert(place, token)
            case "swap" if max(place, other) < len(ids):
                ids[place], ids[other] = ids[other], ids[place]
            case "replace" if place < len(ids):
                ids[place] = token
            case "truncate":
                del ids[place:]
    ids = [token for token in ids if token < len(here.tokenizer)]
    stop = next((place for place, token in enumerate(ids) if token in here.tokens.stop_ids), len(ids))
    return ids[: stop + 1]


CASES = given(
    spec=st.sampled_from(sorted(BENCHMARKS)),
    state=st.sampled_from(list(EpisodeState)),
    rung=st.sampled_from([0, 0, 1, 99]),
    rng=st.randoms(use_true_random=False),
)
SLOW = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", ["toy", "trained"])
@SLOW
@CASES
def test_what_the_grammar_accepts_is_read_as_one_call_with_equal_arguments(
    name: str, spec: str, state: EpisodeState, rung: int, rng: Random
) -> None:
    grammar, states = compiled(name, spec, state, rung)
    ids = walk(name, states, state, rng)
    reading = read(bench(name), grammar, ids)
    reason, call = oracle(name, grammar, ids)
    assert reading.terminal is reason
    if states.accepts(state, ids):
        assert call == {"name": reading.call.name, "arguments": reading.call.arguments}
        assert (reading.call.valid, reading.call.extra_calls, reading.call.reason) == (True, 0, "")
        assert reading.call.raw_text.encode() == b"".join(
            token_bytes(name)[i] for i in ids[ids.index(bench(name).tokens.call_begin_id) + 1 : -2]
        )
        assert grammar.max_generation_tokens is None or len(ids) <= grammar.max_generation_tokens
    elif reason is not None:
        assert (reason, len(ids)) == (TerminalReason.LENGTH, MOST)


@pytest.mark.parametrize("name", ["toy", "trained"])
@SLOW
@CASES
def test_a_mutation_is_accepted_still_or_ends_for_the_reason_it_should(
    name: str, spec: str, state: EpisodeState, rung: int, rng: Random
) -> None:
    grammar, states = compiled(name, spec, state, rung)
    ids = mutate(bench(name), walk(name, states, state, rng), rng)
    reading = read(bench(name), grammar, ids)
    reason, call = oracle(name, grammar, ids)
    assert reading.terminal is reason, (bench(name).template.decode(ids), reading.call.reason)
    assert (reading.call.valid, reading.call.reason == "") == (reason is None, reason is None)
    if call is not None:
        assert call == {"name": reading.call.name, "arguments": reading.call.arguments}
    if states.accepts(state, ids):
        assert reason is None


def test_the_mutations_reach_every_reason() -> None:
    reasons, still_legal = set(), 0
    for seed in range(400):
        rng = Random(seed)
        grammar, states = compiled("toy", "mixed", EpisodeState.OPEN, 0)
        ids = mutate(bench("toy"), walk("toy", states, EpisodeState.OPEN, rng), rng)
        reasons.add(oracle("toy", grammar, ids)[0])
        still_legal += states.accepts(EpisodeState.OPEN, ids)
    assert reasons == {
        None, TerminalReason.NO_CALL, TerminalReason.LENGTH, TerminalReason.INVALID_CALL, TerminalReason.MULTIPLE_CALLS,
    }  # fmt: skip
    assert still_legal > 10
