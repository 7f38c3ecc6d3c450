"""Random weights for a model of ``bench_model``: on disk, where engine and trainer load the same ones, or drawn."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from bench_model import qwen3_tokenizer, write_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification


def write_random_model(
    folder: Path,
    tokenizer_folder: Path | None,
    *,
    num_layers: int,
    hidden_size: int,
    device: str,
    dtype: torch.dtype,
    scales_residual: bool = False,
) -> None:
    """Write configuration, tokenizer and random weights; a folder that is there already is left as it is.

    Args:
        folder: Where to.
        tokenizer_folder: As for ``qwen3_tokenizer``.
        num_layers: 36 in the 8B.
        hidden_size: 4096 in the 8B; a multiple of 128.
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
    tokenizer = qwen3_tokenizer(tokenizer_folder)
    write_model(folder, tokenizer, num_layers=num_layers, hidden_size=hidden_size, max_positions=40960)
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
    if scales_residual:
        _scale_residual(model)
    model.save_pretrained(folder, max_shard_size="5GB")


@torch.no_grad()
def _scale_residual(model: Any) -> None:
    model.get_input_embeddings().weight.normal_(0.0, 1.0)
    factor = (2 * model.config.num_hidden_layers) ** -0.5
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(factor)
        layer.mlp.down_proj.weight.mul_(factor)


@contextmanager
def drawn_weights(device: str) -> Iterator[None]:
    """Where verl loads a model, one of that configuration is drawn on the device instead: nothing goes over a disk."""
    classes: list[Any] = [AutoModelForCausalLM, AutoModelForTokenClassification]
    plain = [one.__dict__.get("from_pretrained") for one in classes]
    for one in classes:
        one.from_pretrained = _drawn(one, device)
    try:
        yield
    finally:
        for one, before in zip(classes, plain, strict=True):
            if before is None:
                del one.from_pretrained
            else:
                one.from_pretrained = before


def _drawn(auto_class: Any, device: str) -> Callable[..., Any]:
    def from_pretrained(*_: Any, config: Any, **options: Any) -> Any:
        torch.manual_seed(0)
        if type(config) not in auto_class._model_mapping:
            raise SystemExit(f"{auto_class.__name__} has no {config.model_type}; give --models without it")
        with torch.device(device):
            return auto_class.from_config(config, dtype=options.get("dtype", options.get("torch_dtype")))

    return from_pretrained
