"""A byte-level BPE with Qwen3's control tokens, trained on the texts of one benchmark."""

from collections.abc import Iterable

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from atlas_rl.errors import ConfigError
from atlas_rl.models.chat import END_OF_TEXT, SPECIAL_TOKENS, THINK_TOKENS, TOOL_TOKENS, TURN_END, chat_template

CONTROL_TOKENS = (*SPECIAL_TOKENS, *TOOL_TOKENS, *THINK_TOKENS)
"""In id order, after the last byte-level token."""

_CONTENT = r"[A-Z]|[0-9]"
"""Characters that carry a question's content stay tokens of their own; the fixed text around them may merge freely,
across words, so that a call is one to three tokens."""


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Train on ``texts``; the same texts give the same tokenizer.

    Args:
        texts: strings without control tokens, each as often as its merges should count.
        vocab_size: most tokens, control tokens included; fewer if the texts offer no more merges.

    Raises:
        ConfigError: ``vocab_size`` does not even hold the bytes and the control tokens.
    """
    smallest = 256 + len(CONTROL_TOKENS)
    if vocab_size < smallest:
        raise ConfigError(
            f"vocab_size: {vocab_size} cannot hold 256 bytes and {len(CONTROL_TOKENS)} control tokens; use {smallest}+"
        )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CONTENT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL_TOKENS),
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in (*TOOL_TOKENS, *THINK_TOKENS)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    tokenizer.chat_template = chat_template(compact=True)
    return tokenizer
