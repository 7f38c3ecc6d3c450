from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import SMALL, small_model, urn, urn_rows
from transformers import GenerationConfig

from atlas_rl.errors import ConfigError
from atlas_rl.models.demonstrations import Protocol
from atlas_rl.models.folder import load_model, load_tokenizer
from atlas_rl.models.tiny import TinyConfig, build_tiny_model
from atlas_rl.models.tokenizer import train_tokenizer


def pieces(tokenizer: Any, ids: Any) -> list[str]:
    return [tokenizer.decode([token_id]) for token_id in ids]


# Tokens of a turn ---------------------------------------------------------------------------------------------------


def test_an_explore_is_four_tokens_and_a_submit_six(protocol: Protocol, tokenizer: Any) -> None:
    explore = '\n{"name": "explore", "arguments": {}}\n'
    submit = '\n{"name": "submit", "arguments": {"answer": "'
    assert pieces(tokenizer, protocol.call_ids("explore", {})) == ["<tool_call>", explore, "</tool_call>", "<|im_end|>"]
    assert pieces(tokenizer, protocol.call_ids("submit", {"answer": "B"})) == [
        *("<tool_call>", submit, "B", '"}}\n', "</tool_call>", "<|im_end|>")
    ]


def test_an_observation_is_eight_tokens_with_its_glue(protocol: Protocol, tokenizer: Any) -> None:
    assert pieces(tokenizer, protocol.template.observation_ids("C")) == [
        *("<|im_start|>", "user\n", "<tool_response>", "C", "</tool_response>", "<|im_end|>"),
        *("<|im_start|>", "assistant\n"),
    ]


def test_text_that_spells_a_control_token_stays_text(protocol: Protocol) -> None:
    ids = protocol.template.observation_ids("<tool_call><|im_end|>")
    assert protocol.tokens.call_begin_id not in ids
    assert ids.count(protocol.tokens.end_of_turn_id) == 1


def test_any_text_comes_back_from_its_ids(tokenizer: Any) -> None:
    text = 'odds 0.26\t\N{SNOWMAN} A/B  "x"\n'
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_template_writes_past_calls_as_the_grammar_spells_them(protocol: Protocol, tokenizer: Any) -> None:
    call = {"type": "function", "function": {"name": "submit", "arguments": {"answer": "B"}}}
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False)
    assert rendered.endswith(tokenizer.decode(protocol.call_ids("submit", {"answer": "B"})))


def test_two_tool_answers_share_one_user_turn(tokenizer: Any) -> None:
    chat = [{"role": "tool", "content": "A"}, {"role": "tool", "content": "B"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == (
        "<|im_start|>user\n<tool_response>A</tool_response><tool_response>B</tool_response><|im_end|>"
    )


# The folder ---------------------------------------------------------------------------------------------------------


def test_the_default_shape_has_about_half_a_million_parameters(tmp_path: Path) -> None:
    num_parameters = build_tiny_model(tmp_path / "tiny", benchmark=urn(), rows=urn_rows(300))
    assert 350_000 <= num_parameters <= 600_000


def test_the_folder_says_what_an_engine_must_know(small_dir: Path, tokenizer: Any) -> None:
    model = load_model(small_dir)
    assert model.config.model_type == "qwen3"
    assert model.config.tie_word_embeddings
    assert model.config.vocab_size % 64 == 0
    assert model.config.vocab_size >= len(tokenizer)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert (
        GenerationConfig.from_pretrained(small_dir).eos_token_id == tokenizer.eos_token_id == model.config.eos_token_id
    )


def test_the_same_seed_gives_the_same_weights_and_tokenizer(small_dir: Path, tmp_path: Path) -> None:
    again = small_model(tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (small_dir / "model.safetensors").read_bytes()
    assert (again / "tokenizer.json").read_bytes() == (small_dir / "tokenizer.json").read_bytes()


def test_another_seed_gives_other_weights(small_dir: Path, tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "other", benchmark=urn(), rows=urn_rows(40), config=SMALL, seed=1)
    one, other = load_model(small_dir).get_input_embeddings(), load_model(tmp_path / "other").get_input_embeddings()
    assert not torch.equal(one.weight, other.weight)


def test_building_leaves_the_callers_random_state_alone(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    small_model(tmp_path / "small")
    assert torch.equal(torch.random.get_rng_state(), before)


# Refusals -----------------------------------------------------------------------------------------------------------


def test_a_folder_that_holds_something_is_never_written_to(small_dir: Path) -> None:
    with pytest.raises(ConfigError, match="is not empty"):
        build_tiny_model(small_dir, benchmark=urn(), rows=urn_rows(1))


def test_a_path_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model(tmp_path)
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_tokenizer(tmp_path)


def test_a_vocabulary_too_small_for_the_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="256 bytes and 9 control tokens"):
        train_tokenizer(["text"], vocab_size=264)


def test_rows_are_needed_to_train_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got none"):
        build_tiny_model(tmp_path / "tiny", benchmark=urn(), rows=[])


@pytest.mark.parametrize("wrong", [{"num_layers": 0}, {"num_heads": 3}, {"initializer_std": 0.0}])
def test_an_impossible_shape_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"tiny.{next(iter(wrong))}"):
        TinyConfig(**wrong)
