"""A small real byte-level tokenizer with Qwen3's control tokens and shape of chat template."""

from typing import Any

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
CORPUS = [
    '\n{"name": "explore", "arguments": {}}\n',
    '\n{"name": "submit", "arguments": {"answer": "B"}}\n',
    "Let me look at the next candidate, then decide. The answer is probably 42 or 1,024.5.\n",
    "system\nuser\nassistant\n# Tools You may call one function. é 数 hello",
    "<tool <|im </tool <|end",
]
TEMPLATE = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' + messages[0].content + '\n\n# Tools\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{{- '\n' }}{%- endfor %}
    {{- 'Call inside <tool_call></tool_call>.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role in ('user', 'assistant') %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""


def toy_tokenizer(
    *, eos: str | None = "<|im_end|>", marks: list[str] = MARKS, template: str = TEMPLATE, corpus: list[str] = CORPUS
) -> Any:
    """About 400 tokens: 256 bytes, merges of the corpus, control tokens last."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=sorted(alphabet), show_progress=False)
    backend.train_from_iterator(corpus * 4, trainer)
    backend.add_special_tokens([AddedToken(text, special=True) for text in CONTROL])
    backend.add_tokens([AddedToken(text, special=False) for text in marks])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, pad_token="<|endoftext|>")
    tokenizer.chat_template = template
    return tokenizer
