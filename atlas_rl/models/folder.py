"""A Hugging Face model folder: read whole, written once."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from atlas_rl.errors import ConfigError, blame

PLAIN_SAMPLING = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
"""Plain sampling: what a folder says that it was sampled with is what RL samples with."""


def claim_folder(out_dir: Path) -> Path:
    """Make the folder to write to.

    Raises:
        ConfigError: something is there already.
    """
    if out_dir.exists() and (not out_dir.is_dir() or any(out_dir.iterdir())):
        raise ConfigError(f"out_dir {out_dir} is not empty; give a new folder or remove it first")
    out_dir.mkdir(parents=True, exist_ok=True)
    return out_dir


def save_model(model: Any, tokenizer: Any, out_dir: Path) -> None:
    """Write weights (safetensors), configuration, tokenizer, and the end token for engines to stop at."""
    model.config.eos_token_id = tokenizer.eos_token_id
    model.config.pad_token_id = tokenizer.pad_token_id
    model.config.bos_token_id = None
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, **PLAIN_SAMPLING
    )
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)


def load_tokenizer(model_dir: Path) -> Any:
    """The tokenizer of a local folder.

    Raises:
        ConfigError: there is none.
    """
    with blame(ConfigError, f"model.path {model_dir} holds no tokenizer"):
        return AutoTokenizer.from_pretrained(_local(model_dir), local_files_only=True)


def load_model(model_dir: Path) -> Any:
    """The causal language model of a local folder, in float32 on the CPU.

    Raises:
        ConfigError: there is none.
    """
    with blame(ConfigError, f"model.path {model_dir} holds no causal language model"):
        return AutoModelForCausalLM.from_pretrained(
            _local(model_dir), dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )


def stored_dtype(model_dir: Path) -> torch.dtype:
    """The dtype in which a folder's weights are stored."""
    dtype = AutoConfig.from_pretrained(_local(model_dir), local_files_only=True).dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def round_to_stored(model: Any, model_dir: Path) -> None:
    """Round trained weights to what the folder's dtype can hold, so that measuring them measures what is saved."""
    dtype = stored_dtype(model_dir)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))


def _local(model_dir: Path) -> Path:
    if not (model_dir / "config.json").is_file():
        raise ConfigError(f"model.path {model_dir}: no config.json; give a local Hugging Face folder")
    return model_dir
