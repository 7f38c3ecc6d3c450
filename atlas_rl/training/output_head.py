"""An actor's output head that gives log-probabilities and entropies of chosen tokens in place of logits.

The model's own head layer computes them when it is called, so whatever wraps the model (FSDP2, PEFT, checkpointing)
keeps its hooks and its order; without a call prepared, the layer gives logits as ever.
"""

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from atlas_rl.errors import ConfigError
from atlas_rl.objective.token_logprobs import LegalSets, token_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCall:
    """Which tokens the next forward pass is asked for. Places count positions of the flattened hidden states."""

    places_N: Tensor
    """int64; the position whose hidden state predicts the token."""
    targets_N: Tensor
    """int64 token ids."""
    temperature_N: Tensor
    """float32."""
    legal: LegalSets | None
    """None: the whole vocabulary."""
    chunk_tokens: int
    entropy_gradient: bool
    compile_chunks: bool


class OutputHead:
    """The head layer of one causal language model."""

    def __init__(self, model: Any) -> None:
        """Take over the layer's forward pass.

        Raises:
            ConfigError: the model has no plain linear head.
        """
        layer = model.get_output_embeddings()
        if not isinstance(layer, nn.Linear):
            raise ConfigError(f"model {type(model).__name__}: its output head is {layer!r}, not a linear layer")
        self.vocab_size: int = layer.weight.shape[0]
        self._plain = layer.forward
        self._call: HeadCall | None = None
        head = self

        def forward(layer: nn.Linear, hidden: Tensor) -> Tensor:
            return head._forward(layer, hidden)

        layer.forward = MethodType(forward, layer)  # type: ignore[method-assign]

    def prepare(self, call: HeadCall) -> None:
        """Let the next forward pass answer this call."""
        self._call = call

    def _forward(self, layer: nn.Linear, hidden: Tensor) -> Tensor:
        """[..., 2] float32 log-probability and entropy, 0 where nothing was asked; [..., V] logits without a call."""
        call, self._call = self._call, None
        if call is None:
            logits: Tensor = self._plain(hidden)
            return logits
        flat_PH = hidden.reshape(-1, hidden.shape[-1])
        # Autocast would cast inside the head; the casts are made here, so that what is computed is written down.
        with torch.autocast(device_type=hidden.device.type, enabled=False):
            scored = token_logprobs(
                flat_PH[call.places_N].to(layer.weight.dtype),
                layer.weight,
                call.targets_N,
                call.temperature_N,
                call.legal,
                chunk_tokens=call.chunk_tokens,
                entropy_gradient=call.entropy_gradient,
                bias_V=layer.bias,
                compile_chunks=call.compile_chunks,
            )
        both_N2 = torch.stack([scored.logprobs_N, scored.entropies_N], dim=1)
        out_P2 = both_N2.new_zeros(flat_PH.shape[0], 2).index_copy(0, call.places_N, both_N2)
        return out_P2.reshape(*hidden.shape[:-1], 2)
