"""Rows of random legal generations under a benchmark's real grammar, for benchmarks of the trainer."""

import random
from typing import Any

import numpy as np

from atlas_rl.grammar.compiled import compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.training.standalone import ActorRow


def legal_row(
    tokenizer: Any, vocab_size: int, *, spec: str, prompt_tokens: int, response_tokens: int, text_tokens: int, seed: int
) -> ActorRow:
    """Turns of text, a call and an observation of 64 tokens, until the response is full.

    Args:
        tokenizer: The model's.
        vocab_size: Rows of its head.
        spec: The benchmark.
        prompt_tokens: Length of the prompt, of random ids.
        response_tokens: Length of the response; the last generation may be cut by it.
        text_tokens: Free text before each call.
        seed: Of every choice.
    """
    rng = random.Random(f"legal row {seed}")
    tokens = ProtocolTokens.from_tokenizer(tokenizer)
    grammar = BenchmarkGrammar.from_benchmark(load_benchmark(spec), tokens)
    state = grammar[EpisodeState.OPEN]
    compiled = compile_states({state.state: state}, tokens, tokenizer, vocab_size=vocab_size)
    ordinary = sorted(set(range(len(tokenizer))) - set(tokens.control_ids))
    response: list[int] = []
    mask: list[int] = []
    generations: list[tuple[int, int, str | None]] = []
    while len(response) < response_tokens:
        matcher = compiled.matcher(state.state)
        ids: list[int] = []
        while not matcher.is_complete and len(response) + len(ids) < response_tokens:
            if len(ids) < text_tokens:
                token = rng.choice(ordinary)
            elif len(ids) == text_tokens:
                token = tokens.call_begin_id
            else:
                token = rng.choice(np.flatnonzero(matcher.allowed()).tolist())
            if not matcher.accept(token):
                raise SystemExit(f"token {token} at {len(ids)} is not legal under {spec}; lower --text-tokens")
            ids.append(token)
        generations.append((len(response), len(ids), state.sha256))
        observation = [rng.choice(ordinary) for _ in range(min(64, response_tokens - len(response) - len(ids)))]
        response += ids + observation
        mask += [1] * len(ids) + [0] * len(observation)
    return ActorRow(
        uid=f"row{seed}", session_id=0, prompt_ids=[rng.choice(ordinary) for _ in range(prompt_tokens)],
        response_ids=response, response_mask=mask, benchmark_spec=spec, generations=generations,
    )  # fmt: skip
