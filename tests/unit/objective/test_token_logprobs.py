"""The chunked head against a plain softmax over the same legal sets, values and gradients."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from atlas_rl.errors import TrainingError
from atlas_rl.objective.token_logprobs import LegalSets, token_logprobs

NUM_TOKENS, HIDDEN, VOCAB = 37, 16, 70  # 70: the last word of a legal set is not full


def packed(is_legal_DV: Tensor) -> Tensor:
    padded = np.zeros((len(is_legal_DV), -(-VOCAB // 32) * 32), dtype=np.uint8)
    padded[:, :VOCAB] = is_legal_DV.numpy()
    return torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32))


class Setting:
    """Random hidden states, head and targets; every target is legal."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.hidden_NH = torch.randn(NUM_TOKENS, HIDDEN, generator=generator, dtype=dtype)
        self.weight_VH = torch.randn(VOCAB, HIDDEN, generator=generator, dtype=dtype)
        self.targets_N = torch.randint(VOCAB, (NUM_TOKENS,), generator=generator)
        self.temperature_N = 0.5 + torch.rand(NUM_TOKENS, generator=generator)
        is_legal_DV = torch.rand(5, VOCAB, generator=generator) < 0.3
        self.which_N = torch.randint(5, (NUM_TOKENS,), generator=generator)
        is_legal_DV[self.which_N, self.targets_N] = True
        self.is_legal_NV = is_legal_DV[self.which_N]
        self.legal = LegalSets(packed(is_legal_DV), self.which_N)

    def reference(self, hidden_NH: Tensor, weight_VH: Tensor, *, masked: bool) -> tuple[Tensor, Tensor]:
        logits_NV = hidden_NH @ weight_VH.T / self.temperature_N[:, None]
        if masked:
            logits_NV = logits_NV.masked_fill(~self.is_legal_NV, -torch.inf)
        log_p_NV = logits_NV.log_softmax(dim=1)
        p_NV = log_p_NV.exp()
        entropies_N = -(p_NV * log_p_NV.masked_fill(p_NV == 0, 0.0)).sum(dim=1)
        return log_p_NV.gather(1, self.targets_N[:, None])[:, 0], entropies_N

    def scored(self, hidden_NH: Tensor, weight_VH: Tensor, *, masked: bool, chunk: int = 8, **options: bool):
        legal = self.legal if masked else None
        return token_logprobs(
            hidden_NH, weight_VH, self.targets_N, self.temperature_N, legal, chunk_tokens=chunk, **options
        )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("chunk", [1, 8, 1000])
def test_values_are_those_of_a_softmax_over_the_legal_set(masked: bool, chunk: int):
    s = Setting()
    scored = s.scored(s.hidden_NH, s.weight_VH, masked=masked, chunk=chunk)
    logprobs_N, entropies_N = s.reference(s.hidden_NH, s.weight_VH, masked=masked)
    torch.testing.assert_close(scored.logprobs_N.double(), logprobs_N, atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(scored.entropies_N.double(), entropies_N, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("head_trains", [False, True])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_gradients_are_those_of_autograd(masked: bool, head_trains: bool, entropy_gradient: bool):
    s = Setting(seed=1)
    weights_N = torch.linspace(-1, 2, NUM_TOKENS, dtype=torch.float64)

    def gradients(score: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> list[Tensor]:
        hidden_NH = s.hidden_NH.clone().requires_grad_()
        weight_VH = s.weight_VH.clone().requires_grad_(head_trains)
        logprobs_N, entropies_N = score(hidden_NH, weight_VH)
        loss = (logprobs_N.double() * weights_N).sum()
        if entropy_gradient:
            loss = loss + 0.3 * (entropies_N.double() * weights_N.flip(0)).sum()
        loss.backward()
        return [hidden_NH.grad, *([weight_VH.grad] if head_trains else [])]

    ours = gradients(lambda h, w: s.scored(h, w, masked=masked, entropy_gradient=entropy_gradient))
    plain = gradients(lambda h, w: s.reference(h, w, masked=masked))
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, atol=3e-5, rtol=1e-5)


def test_an_entropy_that_was_not_asked_to_carries_no_gradient():
    s = Setting()
    for head_trains in (False, True):
        hidden_NH = s.hidden_NH.clone().requires_grad_()
        scored = s.scored(hidden_NH, s.weight_VH.clone().requires_grad_(head_trains), masked=True)
        assert scored.logprobs_N.requires_grad
        assert not scored.entropies_N.requires_grad


def test_a_token_with_one_legal_continuation_has_logprob_entropy_and_gradient_exactly_zero():
    s = Setting(dtype=torch.float32)
    alone_NV = torch.zeros(NUM_TOKENS, VOCAB, dtype=torch.bool)
    alone_NV[torch.arange(NUM_TOKENS), s.targets_N] = True
    legal = LegalSets(packed(alone_NV), torch.arange(NUM_TOKENS))
    hidden_NH = (100 * s.hidden_NH).requires_grad_()
    scored = token_logprobs(
        hidden_NH, s.weight_VH, s.targets_N, s.temperature_N, legal, chunk_tokens=8, entropy_gradient=True
    )
    assert not scored.logprobs_N.any()
    assert not scored.entropies_N.any()
    (scored.logprobs_N.sum() + scored.entropies_N.sum()).backward()
    assert not hidden_NH.grad.any()


def test_an_illegal_logit_changes_nothing_however_large():
    s = Setting(dtype=torch.float32)
    before = s.scored(s.hidden_NH, s.weight_VH, masked=True)
    never_V = ~s.is_legal_NV.any(dim=0)
    assert never_V.any()
    louder_VH = torch.where(never_V[:, None], 1e4 * s.weight_VH, s.weight_VH)
    after = s.scored(s.hidden_NH, louder_VH, masked=True)
    assert torch.equal(before.logprobs_N, after.logprobs_N)
    assert torch.equal(before.entropies_N, after.entropies_N)


def test_no_token_at_all_is_no_error_and_keeps_the_graph():
    hidden_NH = torch.zeros(0, HIDDEN).requires_grad_()
    nothing = torch.zeros(0, dtype=torch.int64)
    for head_trains in (False, True):
        weight_VH = torch.zeros(VOCAB, HIDDEN).requires_grad_(head_trains)
        scored = token_logprobs(hidden_NH, weight_VH, nothing, torch.zeros(0), None, chunk_tokens=8)
        assert scored.logprobs_N.shape == (0,)
        assert scored.logprobs_N.requires_grad
        scored.logprobs_N.sum().backward()


def test_shapes_that_do_not_fit_are_refused():
    s = Setting()
    with pytest.raises(TrainingError, match="do not fit together"):
        token_logprobs(s.hidden_NH, s.weight_VH, s.targets_N[:-1], s.temperature_N, None, chunk_tokens=8)
    short = LegalSets(s.legal.words_DW, s.which_N[:-1])
    with pytest.raises(TrainingError, match="legal sets"):
        token_logprobs(s.hidden_NH, s.weight_VH, s.targets_N, s.temperature_N, short, chunk_tokens=8)


def of_logits(logits: list[float], target: int, temperature: float, legal: list[int] | None) -> float:
    """The head as an identity: hidden states are the logits."""
    hidden_NH = torch.tensor([logits], dtype=torch.float32)
    sets = None
    if legal is not None:
        bits = sum(1 << token for token in legal)
        sets = LegalSets(torch.tensor([[bits]], dtype=torch.int32), torch.tensor([0]))
    scored = token_logprobs(
        hidden_NH, torch.eye(len(logits)), torch.tensor([target]), torch.tensor([temperature]), sets, chunk_tokens=8
    )
    return float(scored.logprobs_N[0])


def test_the_engines_logprob_is_the_one_over_the_legal_set_and_the_ratio_to_it_is_one():
    # Case lp-01: an engine that masks tokens 0 and 1 reports -0.313262; over the whole vocabulary it is -2.44019.
    engine = -0.313262
    assert abs(of_logits([2, 1, 0, -1], 2, 1.0, None) - -2.44019) < 1e-5
    ours = of_logits([2, 1, 0, -1], 2, 1.0, [2, 3])
    assert abs(ours - engine) < 1e-5
    assert abs(np.exp(ours - engine) - 1.0) < 1e-5


def test_temperature_divides_the_logits_and_not_the_logprob():
    # Case lp-03.
    assert abs(of_logits([2, 1, 0, -1], 0, 0.7, None) - -0.270674) < 1e-5
    assert abs(of_logits([2, 1, 0, -1], 0, 1.0, None) - -0.44019) < 1e-5
