"""Forced tokens in the record of an episode, found by replaying its grammars."""

from typing import Any

import pytest
from pydantic import ValidationError
from test_episode_on_a_real_tokenizer import EXPLORE, LETTER, SUBMIT, TOKENIZER, TOKENS, play_text
from toy_episode import tool, toy_benchmark, toy_row
from transformers import PreTrainedTokenizerFast

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.replay import GrammarBook
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.records.episode import Episode, Generation
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.runtime.builder import EpisodeResult
from atlas_rl.runtime.forced import mark_forced


@pytest.fixture(scope="module")
def book() -> GrammarBook:
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer, eos_token="<|im_end|>")
    grammar = BenchmarkGrammar.from_benchmark(toy_benchmark(submit=tool("submit", **LETTER)), TOKENS)
    book = GrammarBook(TOKENS, tokenizer, vocab_size=len(tokenizer))
    book.add(list(grammar.values()))
    return book


def marked(result: EpisodeResult, book: GrammarBook) -> Episode:
    return mark_forced(result.episode, result.response_ids, book)


def test_one_byte_tokens_leave_a_choice_at_the_tool_and_the_answer_only(book: GrammarBook):
    result = play_text("hm " + EXPLORE, SUBMIT, row=toy_row("BA"))
    episode = marked(result, book)
    free = [
        TOKENIZER.decode([token])
        for place, token in enumerate(result.response_ids)
        if result.response_mask[place] and not any(start <= place < end for start, end in episode.forced_spans)
    ]
    # Three bytes of text, the call's begin where text could go on, e or s, and the letter.
    assert free == ["h", "m", " ", "<tool_call>", "e", "<tool_call>", "s", "A"]
    assert episode.model_copy(update={"generations": result.episode.generations}) == result.episode


def test_a_generation_without_a_grammar_is_not_looked_at(book: GrammarBook):
    result = play_text(SUBMIT, row=toy_row("BA"))
    free = result.episode.generations[0].model_copy(update={"grammar_hash": None})
    episode = result.episode.model_copy(update={"generations": (free,)})
    unmarked = mark_forced(episode, result.response_ids, book)
    assert unmarked.generations[0].forced is None
    assert unmarked.forced_spans == ()


def test_a_token_that_the_engine_should_have_masked_is_a_fault_that_names_it(book: GrammarBook):
    # Legal JSON, so the reader takes it, but not the grammar's one spelling.
    result = play_text(SUBMIT.replace('": "submit', '" : "submit'), row=toy_row("BA"))
    assert result.episode.terminal_reason is TerminalReason.SUBMITTED
    episode = marked(result, book)
    assert episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR
    offset = len(TOKENIZER.sample('<tool_call>\n{"name"'))
    assert episode.error is not None
    assert f"token {result.response_ids[offset]} at response offset {offset} is not legal" in episode.error


def test_a_violation_that_the_reader_found_stays_a_violation(book: GrammarBook):
    result = play_text(SUBMIT.replace('"A"', '"C"'), row=toy_row("BA"))
    assert marked(result, book).terminal_reason is TerminalReason.INVALID_CALL


def test_an_unknown_grammar_is_refused(book: GrammarBook):
    result = play_text(SUBMIT, row=toy_row("BA"))
    other = result.episode.generations[0].model_copy(update={"grammar_hash": "0" * 64})
    episode = result.episode.model_copy(update={"generations": (other,)})
    with pytest.raises(GrammarError, match="none of this benchmark's"):
        mark_forced(episode, result.response_ids, book)


@pytest.mark.parametrize("forced", [((3, 2),), ((0, 1), (1, 2)), ((0, 999),), ((-1, 1),)])
def test_a_record_whose_forced_ranges_make_no_sense_is_refused(forced: Any):
    episode = play_text(SUBMIT, row=toy_row("BA")).episode
    one: Generation = episode.generations[0].model_copy(update={"forced": forced})
    with pytest.raises(ValidationError, match="ranges must ascend"):
        Episode.model_validate(episode.model_dump() | {"generations": (one,)})
