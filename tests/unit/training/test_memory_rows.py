"""Synthetic rows have the length that was asked for, several turns, and no token that could not have been sampled."""

from functools import cache
from typing import Any

import pytest

from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.replay import GrammarBook, find_forced
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.models.tiny import benchmark_texts
from atlas_rl.models.tokenizer import train_tokenizer
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows
from atlas_rl.training.memory_rows import RowMaker, SyntheticRow

BENCHMARKS = ("urn", "urn_boundary", "urn_notes")
"""No text before a call, at most 8 tokens of it, at most 16."""


@cache
def tokenizer() -> Any:
    return train_tokenizer(benchmark_texts(load_benchmark("urn"), make_rows(UrnConfig(), 32, 0, "t-")))


def maker(
    benchmark: str, *, is_constrained: bool = True, seed: int = 0, max_text_tokens: int | None = None
) -> RowMaker:
    return RowMaker(
        tokenizer(),
        benchmark_spec=benchmark,
        max_turns=5,
        is_constrained=is_constrained,
        max_text_tokens=max_text_tokens,
        seed=seed,
    )


def rejected(row: SyntheticRow, benchmark: str, max_text_tokens: int | None = None) -> list[int | None]:
    """For each generation the place of the first illegal id, replayed as the training worker replays it."""
    tokens = ProtocolTokens.from_tokenizer(tokenizer())
    grammar = BenchmarkGrammar.from_benchmark(load_benchmark(benchmark), tokens, max_text_tokens=max_text_tokens)
    book = GrammarBook(tokens, tokenizer(), vocab_size=len(tokenizer()))
    book.add(list(grammar.values()))
    found = []
    for offset, num_sampled, grammar_hash in row.generations:
        assert grammar_hash is not None
        found.append(find_forced(book.walk(grammar_hash), row.response_ids[offset : offset + num_sampled]).rejected_at)
    return found


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("response_tokens", [1, 97, 512])
def test_a_row_has_exactly_the_length_that_was_asked_for(benchmark: str, response_tokens: int) -> None:
    row = maker(benchmark).row("a", 33, response_tokens)
    assert (len(row.prompt_ids), len(row.response_ids)) == (33, response_tokens)
    assert len(row.response_mask) == response_tokens
    assert sum(row.response_mask) == sum(num_sampled for _, num_sampled, _ in row.generations)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_generation_is_legal_under_the_grammar_that_it_names(benchmark: str) -> None:
    row = maker(benchmark).row("a", 8, 512)
    assert len(row.generations) >= 5
    assert set(rejected(row, benchmark)) == {None}


def test_a_bound_on_text_of_the_run_is_kept() -> None:
    row = maker("urn_notes", max_text_tokens=3).row("a", 8, 256)
    assert set(rejected(row, "urn_notes", max_text_tokens=3)) == {None}


def test_tokens_without_an_alternative_are_named() -> None:
    row = maker("urn").row("a", 8, 256)
    assert row.forced_spans
    assert all(row.response_mask[start:end] == [1] * (end - start) for start, end in row.forced_spans)


def test_without_a_grammar_a_row_has_as_many_turns_as_the_run_allows() -> None:
    row = maker("urn", is_constrained=False).row("a", 8, 500)
    assert [grammar_hash for _, _, grammar_hash in row.generations] == [None] * 5
    assert row.forced_spans == []


def test_rows_repeat_by_name_and_seed_and_differ_otherwise() -> None:
    first = maker("urn_notes").row("a", 16, 64)
    assert maker("urn_notes").row("a", 16, 64) == first
    assert maker("urn_notes").row("b", 16, 64).prompt_ids != first.prompt_ids
    assert maker("urn_notes", seed=1).row("a", 16, 64).prompt_ids != first.prompt_ids


def test_no_control_token_is_in_a_prompt_or_an_observation() -> None:
    control = set(ProtocolTokens.from_tokenizer(tokenizer()).control_ids)
    row = maker("urn").row("a", 200, 200)
    unsampled = [one for one, is_sampled in zip(row.response_ids, row.response_mask, strict=True) if not is_sampled]
    assert control.isdisjoint([*row.prompt_ids, *unsampled, *maker("urn").prompt("long", 200)])
