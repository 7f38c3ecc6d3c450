"""Tokenizers of the grammar tests."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_tokenizer import toy_tokenizer

from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.template import ChatTemplate


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The toy tokenizer."""
    return toy_tokenizer()


@pytest.fixture(scope="session")
def tokens(tokenizer: Any) -> ProtocolTokens:
    """Its protocol tokens, with the padding token as a second stop."""
    return ProtocolTokens.from_tokenizer(tokenizer, extra_stop_ids=[tokenizer.convert_tokens_to_ids("<|endoftext|>")])


@pytest.fixture(scope="session")
def template(tokenizer: Any, tokens: ProtocolTokens) -> ChatTemplate:
    """Its chat template."""
    return ChatTemplate(tokenizer, tokens)


@pytest.fixture(scope="session")
def encode(tokenizer: Any) -> Callable[[str], list[int]]:
    """Text to ids with control tokens recognised, as a policy would sample the text."""
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


@pytest.fixture(scope="session")
def qwen3() -> Any:
    """The real Qwen3 tokenizer, from the folder that ATLAS_QWEN3_TOKENIZER names."""
    folder = os.environ.get("ATLAS_QWEN3_TOKENIZER")
    if not folder:
        pytest.skip("set ATLAS_QWEN3_TOKENIZER to a folder with Qwen3's tokenizer.json and tokenizer_config.json")
    from transformers import PreTrainedTokenizerFast

    config = json.loads((Path(folder) / "tokenizer_config.json").read_text(encoding="utf-8"))
    loaded = PreTrainedTokenizerFast(
        tokenizer_file=str(Path(folder) / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    loaded.chat_template = config["chat_template"]
    return loaded
