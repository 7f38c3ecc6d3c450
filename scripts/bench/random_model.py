"""A Qwen3-shaped model with random weights on disk, for benchmarks that need a size and no knowledge."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

SHAPES = {
    "8b": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": False,
    },
    "1.7b": {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 151936, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Sizes as the published Qwen3 configs give them, and one for rehearsals on a CPU."""


def write_random_model(
    folder: Path,
    shape: str,
    tokenizer_folder: Path,
    *,
    device: str,
    dtype: torch.dtype,
    scales_residual: bool = False,
) -> None:
    """Write config, tokenizer and random weights; a folder that is there already is left as it is.

    Args:
        folder: Where to.
        shape: A key of ``SHAPES``.
        tokenizer_folder: Holds tokenizer.json and tokenizer_config.json.
        device: Where the weights are drawn.
        dtype: Of the weights.
        scales_residual: Draw the embeddings with unit variance and divide what each layer adds to them by the root of
            twice the number of layers, as GPT-2 does (Radford et al. 2019, section 2.3). With transformers' own 0.02
            everywhere the first layer drowns the embedding and rounding errors grow from layer to layer, which no
            trained model does.
    """
    if (folder / "config.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_folder / name, folder / name)
    config = Qwen3Config(**SHAPES[shape], max_position_embeddings=40960, rope_theta=1e6, eos_token_id=_end(folder))
    torch.manual_seed(0)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    finally:
        torch.set_default_dtype(previous)
    if scales_residual:
        _scale_residual(model)
    model.save_pretrained(folder, max_shard_size="5GB")
    del model


@torch.no_grad()
def _scale_residual(model: Any) -> None:
    model.get_input_embeddings().weight.normal_(0.0, 1.0)
    if model.config.tie_word_embeddings:
        raise SystemExit("a model with tied embeddings has no head of its own; choose another shape")
    factor = (2 * model.config.num_hidden_layers) ** -0.5
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(factor)
        layer.mlp.down_proj.weight.mul_(factor)


def _end(folder: Path) -> int:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    end = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["eos_token"]
    name = end if isinstance(end, str) else end["content"]
    return int(next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == name))
