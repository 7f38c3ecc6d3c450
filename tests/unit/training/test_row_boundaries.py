"""Linear attention over packed rows: outputs and gradients as if each row were alone."""

from typing import Any

import pytest
import torch
from torch.nn.functional import conv1d
from transformers import Qwen3_5TextConfig, Qwen3NextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from atlas_rl.errors import ConfigError
from atlas_rl.training.row_boundaries import border_arguments, convolve_by_row, stop_at_row_ends

SHAPE: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 4, "linear_value_head_dim": 4,
}  # fmt: skip
LENGTHS = (3, 70, 1, 20)
BORDERS = torch.tensor([0, 3, 73, 74, 94])


def layer_of(family: str) -> Any:
    torch.manual_seed(0)
    if family == "qwen3_5":
        return Qwen3_5GatedDeltaNet(Qwen3_5TextConfig(**SHAPE), layer_idx=0)
    return Qwen3NextGatedDeltaNet(Qwen3NextConfig(**SHAPE), layer_idx=0)


def outputs_and_gradient(layer: Any, hidden: torch.Tensor, lengths: tuple[int, ...], **borders: Any) -> Any:
    """Outputs of all tokens and the input's gradient, the rows run one by one if there are several lengths."""
    given = hidden.clone().requires_grad_()
    output = torch.cat([layer(row, **borders) for row in given.split(lengths, dim=1)], dim=1)
    (output * torch.linspace(-1, 1, output.numel()).reshape(output.shape)).sum().backward()
    return output.detach(), given.grad


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_a_packed_layer_gives_each_row_what_it_gets_alone_and_the_same_gradient(family: str):
    layer = layer_of(family)
    hidden = torch.randn(1, sum(LENGTHS), 16, generator=torch.Generator().manual_seed(1))
    alone = outputs_and_gradient(layer, hidden, LENGTHS)
    leaking = outputs_and_gradient(layer, hidden, (sum(LENGTHS),), **border_arguments(BORDERS))
    assert float((leaking[0] - alone[0]).abs().max()) > 1e-3
    assert float((leaking[1] - alone[1]).abs().max()) > 1e-3

    assert stop_at_row_ends(layer)
    packed = outputs_and_gradient(layer, hidden, (sum(LENGTHS),), **border_arguments(BORDERS))
    torch.testing.assert_close(packed, alone, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(outputs_and_gradient(layer, hidden, LENGTHS), alone, atol=2e-6, rtol=1e-5)


def test_only_models_with_linear_attention_are_given_borders():
    assert not stop_at_row_ends(torch.nn.Linear(2, 2))
    assert stop_at_row_ends(torch.nn.Sequential(layer_of("qwen3_5")))


def test_borders_have_the_names_and_types_that_transformers_reads():
    found = border_arguments(torch.tensor([0, 2, 3]))
    assert found["cu_seq_lens_q"].tolist() == [0, 2, 3]
    assert found["seq_idx"].tolist() == [[0, 0, 1]]
    assert found["seq_idx"].dtype is torch.int32


def test_a_convolution_without_rows_is_the_causal_one():
    x, weight, bias = torch.randn(2, 3, 9), torch.randn(3, 4), torch.randn(3)
    expected = conv1d(torch.nn.functional.pad(x, (3, 0)), weight[:, None], bias, groups=3)
    torch.testing.assert_close(convolve_by_row(x, weight, bias), expected)


def test_a_convolution_refuses_an_activation_that_it_does_not_know():
    with pytest.raises(ConfigError, match=r"activation 'gelu' needs the causal-conv1d package"):
        convolve_by_row(torch.zeros(1, 1, 2), torch.zeros(1, 2), activation="gelu")


def test_a_state_kept_between_calls_is_refused_for_packed_rows():
    layer = layer_of("qwen3_5")
    stop_at_row_ends(layer)
    query = torch.zeros(1, 4, 4, 4)
    with pytest.raises(ConfigError, match="a state kept between calls has no row"):
        layer.chunk_gated_delta_rule(
            query, query, query, g=torch.zeros(1, 4, 4), beta=torch.zeros(1, 4, 4),
            output_final_state=True, cu_seqlens=torch.tensor([0, 2, 4]),
        )  # fmt: skip
