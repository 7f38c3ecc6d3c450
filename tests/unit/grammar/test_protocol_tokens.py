from typing import Any

import pytest
from toy_tokenizer import MARKS, toy_tokenizer

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.protocol import ProtocolTokens


def test_control_tokens_are_all_added_tokens_but_the_think_marks(tokens: ProtocolTokens) -> None:
    assert tokens.control_texts == (
        "<|endoftext|>", "<|im_start|>", "<|im_end|>",
        "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    )  # fmt: skip


def test_the_end_of_turn_is_the_first_stop_id(tokenizer: Any, tokens: ProtocolTokens) -> None:
    assert tokenizer.convert_ids_to_tokens(list(tokens.stop_ids)) == ["<|im_end|>", "<|endoftext|>"]


def test_a_tokenizer_without_call_tokens_is_refused_with_the_remedy() -> None:
    bare = toy_tokenizer(marks=MARKS[1:])
    with pytest.raises(GrammarError, match=r"no single token for '<tool_call>'.*add_tokens\(\['<tool_call>'\]\)"):
        ProtocolTokens.from_tokenizer(bare)


def test_a_tokenizer_without_an_end_token_is_refused_with_the_remedy() -> None:
    with pytest.raises(GrammarError, match=r"end-of-text token id None; set tokenizer\.eos_token"):
        ProtocolTokens.from_tokenizer(toy_tokenizer(eos=None))


def test_a_stop_id_that_is_an_ordinary_token_is_refused(tokenizer: Any) -> None:
    letter = tokenizer.convert_tokens_to_ids("a")
    with pytest.raises(GrammarError, match=rf"stop ids \[{letter}\] are ordinary tokens"):
        ProtocolTokens.from_tokenizer(tokenizer, extra_stop_ids=[letter])


@pytest.mark.parametrize("stop", [-1, 5000])
def test_a_stop_id_that_the_tokenizer_does_not_know_is_refused(stop: int, tokenizer: Any) -> None:
    with pytest.raises(GrammarError, match=rf"stop ids \[{stop}\] are no tokens of the tokenizer; take them out of"):
        ProtocolTokens.from_tokenizer(tokenizer, extra_stop_ids=[stop])


def test_a_call_token_cannot_also_stop_the_engine() -> None:
    with pytest.raises(GrammarError, match="hold a call token"):
        ProtocolTokens(call_begin_id=1, call_end_id=2, end_of_turn_id=3, stop_ids=(3, 2))


def test_two_roles_cannot_share_a_token() -> None:
    with pytest.raises(GrammarError, match="three different token ids"):
        ProtocolTokens(call_begin_id=1, call_end_id=1, end_of_turn_id=3, stop_ids=(3,))
