"""Write an adapter's folder: adapter_config.json and adapter_model.safetensors, as PEFT and vLLM read them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from atlas_rl.adapters.names import CONFIG_FILE, FINGERPRINT, TENSOR_FILE, is_b
from atlas_rl.adapters.settings import AdapterKind, AdapterSettings
from atlas_rl.adapters.tensor_file import TensorSpec, write_tensors
from atlas_rl.errors import TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """What an adapter holds, for a report."""

    kind: AdapterKind
    task_type: str
    rank: int
    alpha: int
    target_modules: tuple[str, ...]
    dtype: str
    base_fingerprint: str
    num_tensors: int
    num_values: int
    """Numbers in all tensors together."""
    num_b: int
    num_nonzero_b: int
    """B tensors with any value that is not zero; 0 before training."""
    files: Mapping[str, str]
    """File name to sha256 (hex)."""
    tensors: Mapping[str, str]
    """Tensor name to sha256 (hex) of its bytes, row after row."""

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``."""
        return asdict(self)

    def line(self) -> str:
        """One line for the command line."""
        return (
            f"{self.task_type}, rank {self.rank}, {self.num_tensors} tensors, {self.num_values} {self.dtype} values, "
            f"{self.num_nonzero_b} of {self.num_b} B non-zero, sha256 {self.files[TENSOR_FILE]}"
        )


def write_adapter(
    folder: Path,
    settings: AdapterSettings,
    tensors: Mapping[str, torch.Tensor],
    *,
    base: Path,
    base_fingerprint: str,
) -> AdapterFacts:
    """Write the two files of an adapter.

    Args:
        folder: There already, and empty.
        settings: Of the adapter.
        tensors: By their names in the file; float32 on the CPU.
        base: The base model's folder, for PEFT to name.
        base_fingerprint: Its sha256 (hex).

    Raises:
        ConfigError: a file cannot be written.
        TrainingError: a tensor is not float32, or holds a NaN or an infinity.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            raise TrainingError(f"adapter tensor {name} is {tensor.dtype}, must be float32; adapters train in float32")
        if not torch.isfinite(tensor).all():
            raise TrainingError(f"adapter tensor {name} holds a NaN or an infinity; take an earlier step")
    specs = [TensorSpec(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()]
    digests = write_tensors(
        folder / TENSOR_FILE, specs, tensors.__getitem__, {"format": "pt", FINGERPRINT: base_fingerprint}
    )
    config = _config_text(settings, base)
    (folder / CONFIG_FILE).write_bytes(config)
    b = [tensor for name, tensor in tensors.items() if is_b(name)]
    return AdapterFacts(
        kind=settings.kind,
        task_type=settings.task_type.value,
        rank=settings.rank,
        alpha=settings.alpha,
        target_modules=settings.targets,
        dtype="float32",
        base_fingerprint=base_fingerprint,
        num_tensors=len(tensors),
        num_values=sum(tensor.numel() for tensor in tensors.values()),
        num_b=len(b),
        num_nonzero_b=sum(bool(tensor.any()) for tensor in b),
        files={CONFIG_FILE: hashlib.sha256(config).hexdigest(), TENSOR_FILE: digests.file},
        tensors=dict(sorted(digests.tensors.items())),
    )


def _config_text(settings: AdapterSettings, base: Path) -> bytes:
    content: dict[str, Any] = settings.lora_config(str(base)).to_dict()  # type: ignore[no-untyped-call]
    # PEFT keeps names in a set, whose order changes from one process to the next.
    content = {key: sorted(value) if isinstance(value, set) else value for key, value in content.items()}
    content["inference_mode"] = True
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()
