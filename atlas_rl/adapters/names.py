"""Names in an adapter's folder, and a tensor's two: in a model under training, and in an adapter file."""

import re

from atlas_rl.adapters.settings import ADAPTER_NAME
from atlas_rl.errors import TrainingError

CONFIG_FILE = "adapter_config.json"
TENSOR_FILE = "adapter_model.safetensors"

FINGERPRINT = "base_fingerprint"
"""In the head of a tensor file: sha256 (hex) of the base, so that an adapter says what it belongs to wherever it is
copied."""

PREFIX = "base_model.model."
"""What PEFT puts before the name of a module of the base."""

_LIVE = re.compile(
    rf"{re.escape(PREFIX)}.+?(\.lora_[AB]\.{ADAPTER_NAME}\.weight|\.modules_to_save\.{ADAPTER_NAME}\.(weight|bias))"
)


def file_name(live: str) -> str:
    """The name in an adapter file of a trainable parameter.

    base_model.model.lm.q_proj.lora_A.default.weight      ->  base_model.model.lm.q_proj.lora_A.weight
    base_model.model.score.modules_to_save.default.bias   ->  base_model.model.score.bias

    Raises:
        TrainingError: it is the name of no LoRA tensor and of no layer that is trained whole.
    """
    if _LIVE.fullmatch(live) is None:
        raise TrainingError(
            f"tensor {live!r} is neither {PREFIX}LAYER.lora_A.{ADAPTER_NAME}.weight (or lora_B) nor a layer trained "
            "whole; an adapter cannot hold it"
        )
    return live.replace(f".modules_to_save.{ADAPTER_NAME}.", ".").replace(f".{ADAPTER_NAME}.", ".")


def lora_names(layer: str) -> tuple[str, str]:
    """Names in an adapter file of A [rank, in] and B [out, rank] of a layer of the base."""
    return f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight"


def is_b(name: str) -> bool:
    """Whether a tensor of an adapter file is a B, zero at the start."""
    return name.endswith(".lora_B.weight")
