"""A Qwen3 of about half a million parameters with a tokenizer of its own, built from nothing in seconds."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from atlas_rl.errors import ConfigError
from atlas_rl.models.folder import claim_folder, save_model
from atlas_rl.models.tokenizer import CONTROL_TOKENS, train_tokenizer
from atlas_rl.tasks.benchmark import Benchmark
from atlas_rl.tasks.notes import NOTES
from atlas_rl.tasks.row import Row
from atlas_rl.tasks.sequential import messages, observation_text

_VOCAB_MULTIPLE = 64
"""Rows of the embedding come in this multiple, which tensor-parallel and vectorised kernels like."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyConfig:
    """The shape of the model. The default has about 0.5M parameters."""

    vocab_size: int = 1024
    """Most tokens of the tokenizer; the model's own vocabulary is the trained one, rounded up to a multiple of 64."""
    hidden_size: int = 128
    intermediate_size: int = 320
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    """vLLM's CPU attention knows 32, 64, 80, 96, 112, 128, 160, 192, 224, 256 and 512."""
    max_positions: int = 2048
    """Longest prompt and response together, in tokens."""
    initializer_std: float = 0.05
    """Standard deviation of the initial weights. The usual 0.02 leaves so narrow a model on a plateau for hundreds of
    steps before it copies its first letter; at 0.05 it copies within fifty."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: a size is below 1, heads do not share key-value heads evenly, or the spread is not positive.
        """
        for name in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"tiny.{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"tiny.num_heads {self.num_heads} must be a multiple of tiny.num_kv_heads {self.num_kv_heads}"
            )
        if self.initializer_std <= 0 or self.max_positions < 1:
            raise ConfigError(
                f"tiny.initializer_std and tiny.max_positions must be positive, got {self.initializer_std}, "
                f"{self.max_positions}"
            )


def build_tiny_model(
    out_dir: Path, *, benchmark: Benchmark, rows: Sequence[Row], seed: int = 0, config: TinyConfig | None = None
) -> int:
    """Write a Hugging Face folder with a fresh tokenizer and seeded random weights in float32.

    Args:
        out_dir: A new or empty folder.
        benchmark: Its texts train the tokenizer.
        rows: Questions of the benchmark; a few hundred are enough.
        seed: Of the weights.
        config: The shape.

    Returns:
        The number of parameters.

    Raises:
        ConfigError: the folder is not empty, or there are no rows.
    """
    shape = config or TinyConfig()
    if not rows:
        raise ConfigError("build_tiny_model needs rows to train its tokenizer on; got none")
    claim_folder(out_dir)
    tokenizer = train_tokenizer(benchmark_texts(benchmark, rows), vocab_size=shape.vocab_size)
    model = _model(shape, len(tokenizer), seed)
    save_model(model, tokenizer, out_dir)
    return sum(parameter.numel() for parameter in model.parameters())


def _model(shape: TinyConfig, num_tokens: int, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=-(-num_tokens // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE,
                hidden_size=shape.hidden_size,
                intermediate_size=shape.intermediate_size,
                num_hidden_layers=shape.num_layers,
                num_attention_heads=shape.num_heads,
                num_key_value_heads=shape.num_kv_heads,
                head_dim=shape.head_dim,
                max_position_embeddings=shape.max_positions,
                initializer_range=shape.initializer_std,
                tie_word_embeddings=True,
                dtype="float32",
            )
        )


def benchmark_texts(benchmark: Benchmark, rows: Sequence[Row]) -> Iterator[str]:
    """Every text between two control tokens of each row's full episode, in the tiny model's chat template."""
    renderer = train_tokenizer([])
    control = re.compile("|".join(map(re.escape, CONTROL_TOKENS)))
    tools: list[Any] = [benchmark.explore.openai, benchmark.submit.openai]
    for row in rows:
        chat: list[dict[str, Any]] = list(messages(benchmark, row))
        history = [candidate.answer for candidate in row.candidates[: row.max_explores]]
        notes = [NOTES[benchmark.note](history[:k]) if benchmark.note else "" for k in range(len(history) + 1)]
        for k, note in enumerate(notes[:-1], start=1):
            chat.append(_call(note, benchmark.explore.name, {}))
            chat.append({"role": "tool", "content": observation_text(benchmark, row, k)})
        chat.append(_call(notes[-1], benchmark.submit.name, {benchmark.submission_field: row.ground_truth}))
        text = str(renderer.apply_chat_template(chat, tools=tools, tokenize=False))
        yield from filter(None, control.split(text))


def _call(note: str, name: str, arguments: dict[str, str]) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": note, "tool_calls": [{"type": "function", "function": function}]}
