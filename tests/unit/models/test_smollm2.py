"""The conversion's parts on a stand-in as a GGUF file gives it; the real file is an optional extra."""

from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from atlas_rl.errors import ConfigError
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.models import smollm2
from atlas_rl.models.smollm2 import add_embeddings, smollm2_warm_start, tool_tokenizer


def stored_tokenizer() -> Any:
    """Byte-level with SmolLM2's control tokens first, the wrong end token, and no decoder worth the name."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    texts = [*control, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ"]
    backend = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(texts)}, merges=[("Ġ", "Ġ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteLevel()])
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_start|>", clean_up_tokenization_spaces=False
    )


def test_the_missing_tool_tokens_are_added_after_the_vocabulary() -> None:
    stored = stored_tokenizer()
    tokenizer, added = tool_tokenizer(stored)
    assert added == ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    assert tokenizer.convert_tokens_to_ids(added) == [260, 261, 262, 263]
    assert len(stored) == 260


def test_the_end_token_is_settled() -> None:
    tokenizer, _ = tool_tokenizer(stored_tokenizer())
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token) == ("<|im_end|>", 2, "<|endoftext|>")


def test_digits_are_cut_off_before_words_so_that_blanks_before_them_stay_together() -> None:
    tokenizer, _ = tool_tokenizer(stored_tokenizer())
    assert [tokenizer.decode([token_id]) for token_id in tokenizer.encode("  12")] == ["  ", "1", "2"]


def test_every_text_comes_back_from_its_ids() -> None:
    tokenizer, _ = tool_tokenizer(stored_tokenizer())
    text = 'a▁b  {"x": 12}\n\N{SNOWMAN}'
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_tokenizer_carries_the_protocol_in_the_spacing_that_chat_models_know() -> None:
    tokenizer, _ = tool_tokenizer(stored_tokenizer())
    template = ChatTemplate(tokenizer, ProtocolTokens.from_tokenizer(tokenizer))
    assert tokenizer.decode(template.observation_ids("42")) == (
        "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_new_embeddings_lie_near_the_mean_and_trained_ones_stay() -> None:
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    before = model.get_input_embeddings().weight.detach().clone()
    add_embeddings(model, num_tokens=52, num_trained=50, seed=0)
    weight = model.get_input_embeddings().weight.detach()
    assert weight.shape == (64, 16)
    assert model.config.vocab_size == 64
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert torch.equal(weight[:50], before)
    assert not torch.equal(weight[50], weight[51])
    assert float((weight[50:] - before.mean(dim=0)).abs().max()) < float(before.std()) * 0.6


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(smollm2, "_PACKAGE", "no_such_package_here")
    with pytest.raises(ConfigError, match="uv sync --extra smollm2"):
        smollm2.convert_smollm2(tmp_path / "smollm2")
    assert not (tmp_path / "smollm2").exists()


def test_the_warm_start_stops_within_the_four_candidates_of_a_gsm8k_row() -> None:
    settings = smollm2_warm_start(num_steps=3, seed=9)
    assert (settings.num_steps, settings.seed, settings.primer_stop) == (3, 9, None)
    assert max(settings.stop.late) == 4
