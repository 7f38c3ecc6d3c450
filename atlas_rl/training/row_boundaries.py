"""Linear attention that stops at the end of each row of a packed micro-batch.

A gated delta net keeps a state over time and convolves over the last few tokens. Its kernels take the rows' borders:
cumulative lengths for the state, a row number a token for the convolution. transformers 5.9 puts a plain torch
function in the place of a kernel that is not installed, and that one takes the borders and ignores them. verl 0.9.1
passes borders only to models whose own ``forward`` names them: not to a critic, nor to a text-only actor.

Shape suffixes: B = rows of the batch (1 if packed), D = channels, T = tokens, K = kernel width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, silu

from atlas_rl.errors import ConfigError

_STATE = "chunk_gated_delta_rule"
_CONVOLUTION = "causal_conv1d_fn"
_TORCH_STATE = f"torch_{_STATE}"


def linear_attention_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a model that keep a state over time by the gated delta rule."""
    return [layer for layer in model.modules() if hasattr(layer, _STATE)]


def stop_at_row_ends(model: nn.Module) -> bool:
    """Let each linear-attention layer without kernels heed the rows' borders that it is given.

    Returns:
        Whether the model has such layers, so that its forward pass must be given borders (``border_arguments``).
    """
    layers: list[Any] = linear_attention_layers(model)
    for layer in layers:
        if layer.chunk_gated_delta_rule.__name__ == _TORCH_STATE:
            layer.chunk_gated_delta_rule = _state_by_row(layer.chunk_gated_delta_rule)
        if getattr(layer, _CONVOLUTION, layer) is None:
            layer.causal_conv1d_fn = convolve_by_row
    return bool(layers)


def border_arguments(cu_seqlens: Tensor) -> dict[str, Tensor]:
    """The borders under the names that transformers' own linear attention reads; verl's are ``cu_seqlens``.

    Args:
        cu_seqlens: [rows + 1] int64, from 0 to the number of packed tokens.
    """
    lengths = cu_seqlens.diff()
    row_T = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device, dtype=torch.int32), lengths)
    return {"cu_seq_lens_q": cu_seqlens, "seq_idx": row_T[None]}


def _state_by_row(whole: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[Tensor, Any]]:
    """Run the torch function on each row by itself."""

    def by_row(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: Tensor | None = None,
        cu_seqlens_cpu: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        more = {"output_final_state": output_final_state, "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel}
        if cu_seqlens is None:
            return whole(query, key, value, g=g, beta=beta, initial_state=initial_state, **more)
        if initial_state is not None or output_final_state:
            raise ConfigError("linear attention over packed rows: a state kept between calls has no row; call unpacked")
        lengths = (cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu).diff().tolist()
        rows = zip(*(torch.split(tensor, lengths, dim=1) for tensor in (query, key, value, g, beta)), strict=True)
        outputs = [whole(q, k, v, g=g_row, beta=b, initial_state=None, **more)[0] for q, k, v, g_row, b in rows]
        return torch.cat(outputs, dim=1), None

    return by_row


def convolve_by_row(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    seq_idx: Tensor | None = None,
) -> Tensor:
    """[B, D, T] the causal convolution of each channel with its own kernel; no row sees tokens of another.

    It takes the place of the ``causal_conv1d`` package's function and has its parameters.

    Args:
        x: [B, D, T].
        weight: [D, K].
        bias: [D].
        activation: None, or silu.
        seq_idx: [1, T] the row of each token if rows are packed; B is then 1.

    Raises:
        ConfigError: another activation.
    """
    if activation not in (None, "silu", "swish"):
        raise ConfigError(f"linear attention: activation {activation!r} needs the causal-conv1d package; install it")
    lengths = [x.shape[2]] if seq_idx is None else torch.unique_consecutive(seq_idx, return_counts=True)[1].tolist()
    kernel = weight[:, None]
    rows = [
        conv1d(row, kernel, bias, padding=weight.shape[1] - 1, groups=x.shape[1])[..., : row.shape[2]]
        for row in torch.split(x, lengths, dim=2)
    ]
    out = torch.cat(rows, dim=2)
    return out if activation is None else silu(out)
