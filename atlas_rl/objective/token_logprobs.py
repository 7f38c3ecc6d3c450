"""Log-probabilities and entropies of chosen tokens from hidden states, over the whole vocabulary or a legal set.

The output head runs in chunks, so no tensor of all tokens by the whole vocabulary ever exists, and only the tokens
that are asked for pass it at all.

Shape suffixes: N = chosen tokens, C = tokens of a chunk, H = hidden size, V = rows of the head, W = ceil(V / 32) words
of a legal set, D = distinct legal sets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from atlas_rl.errors import TrainingError

_EXCLUDED = -1e30
"""Logit of an illegal token: its probability is exactly 0, and unlike an infinity it gives no NaN when multiplied."""


class TokenLogProbs(NamedTuple):
    """Both float32 and differentiable with respect to the hidden states."""

    logprobs_N: Tensor
    """Nats, after temperature, over the legal set."""
    entropies_N: Tensor
    """Nats, of the distribution over the legal set; no gradient unless it was asked for."""


@dataclass(frozen=True, slots=True)
class LegalSets:
    """Which tokens each chosen token could have been."""

    words_DW: Tensor
    """int32; bit v % 32 of word v // 32 is 1 if token v is legal. Each distinct set once."""
    which_N: Tensor
    """int64 place of each token's set in ``words_DW``."""


class _Chunk(NamedTuple):
    logits_CV: Tensor
    targets_C: Tensor
    temperature_C: Tensor
    words_CW: Tensor | None


class _Stats(NamedTuple):
    logprobs_C: Tensor
    entropies_C: Tensor
    toward_CV: Tensor | None
    """Derivative of the log-probability by the logits."""
    spread_CV: Tensor | None
    """Derivative of the entropy by the logits."""


def token_logprobs(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    temperature_N: Tensor,
    legal: LegalSets | None,
    *,
    chunk_tokens: int,
    entropy_gradient: bool = False,
    bias_V: Tensor | None = None,
    compile_chunks: bool = False,
) -> TokenLogProbs:
    """Score the chosen tokens.

    Args:
        hidden_NH: Last hidden states at the positions that predict the tokens, in the head's dtype.
        weight_VH: The head's weight. If it trains, its gradient costs one more pass over each chunk.
        targets_N: int64 ids of the tokens.
        temperature_N: float32, above 0.
        legal: The legal sets; None: the whole vocabulary. Every target must be in its set.
        chunk_tokens: Tokens whose logits exist at one time.
        entropy_gradient: Let gradients flow through the entropies too.
        bias_V: The head's bias.
        compile_chunks: Fuse the arithmetic of a chunk with torch.compile.

    Raises:
        TrainingError: shapes disagree.
    """
    num_tokens = hidden_NH.shape[0]
    if not num_tokens == targets_N.shape[0] == temperature_N.shape[0] or hidden_NH.shape[1] != weight_VH.shape[1]:
        raise TrainingError(
            f"token_logprobs: hidden {tuple(hidden_NH.shape)}, head {tuple(weight_VH.shape)}, "
            f"{targets_N.shape[0]} targets and {temperature_N.shape[0]} temperatures do not fit together"
        )
    if legal is not None and legal.which_N.shape[0] != num_tokens:
        raise TrainingError(f"token_logprobs: {num_tokens} tokens, {legal.which_N.shape[0]} legal sets")
    head = _Head(weight_VH, bias_V, targets_N, temperature_N, legal, chunk_tokens, compile_chunks)
    if weight_VH.requires_grad or (bias_V is not None and bias_V.requires_grad):
        return _through_autograd(hidden_NH, head, entropy_gradient)
    logprobs_N, entropies_N = _FrozenHead.apply(hidden_NH, head, entropy_gradient)  # type: ignore[no-untyped-call]
    return TokenLogProbs(logprobs_N, entropies_N)


@dataclass(frozen=True, slots=True)
class _Head:
    weight_VH: Tensor
    bias_V: Tensor | None
    targets_N: Tensor
    temperature_N: Tensor
    legal: LegalSets | None
    chunk_tokens: int
    compile_chunks: bool

    def slices(self) -> list[slice]:
        num_tokens = self.targets_N.shape[0]
        return [slice(i, min(i + self.chunk_tokens, num_tokens)) for i in range(0, num_tokens, self.chunk_tokens)]

    def chunk(self, hidden_CH: Tensor, place: slice) -> _Chunk:
        logits_CV = torch.nn.functional.linear(hidden_CH, self.weight_VH, self.bias_V)
        words_CW = None if self.legal is None else self.legal.words_DW[self.legal.which_N[place]]
        return _Chunk(logits_CV, self.targets_N[place], self.temperature_N[place], words_CW)

    @property
    def arithmetic(self) -> Callable[..., _Stats]:
        return _compiled_stats() if self.compile_chunks else _stats


class _FrozenHead(torch.autograd.Function):
    """A head that does not train: derivatives by the hidden states are made in the forward pass, chunk by chunk.

    One derivative a token is all that the backward pass can need, since its incoming gradient is one number a token.
    """

    @staticmethod
    def forward(ctx: Any, hidden_NH: Tensor, head: _Head, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        num_tokens = hidden_NH.shape[0]
        logprobs_N = hidden_NH.new_zeros(num_tokens, dtype=torch.float32)
        entropies_N = torch.zeros_like(logprobs_N)
        needs_gradient = ctx.needs_input_grad[0]
        toward_NH = torch.empty_like(hidden_NH) if needs_gradient else None
        spread_NH = torch.empty_like(hidden_NH) if needs_gradient and entropy_gradient else None
        for place in head.slices():
            stats = head.arithmetic(
                *head.chunk(hidden_NH[place], place), toward=toward_NH is not None, spread=spread_NH is not None
            )
            logprobs_N[place], entropies_N[place] = stats.logprobs_C, stats.entropies_C
            if toward_NH is not None and stats.toward_CV is not None:
                toward_NH[place] = stats.toward_CV.to(head.weight_VH.dtype) @ head.weight_VH
            if spread_NH is not None and stats.spread_CV is not None:
                spread_NH[place] = stats.spread_CV.to(head.weight_VH.dtype) @ head.weight_VH
        ctx.save_for_backward(toward_NH, spread_NH)
        if spread_NH is None:
            ctx.mark_non_differentiable(entropies_N)
        return logprobs_N, entropies_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        toward_NH, spread_NH = ctx.saved_tensors
        gradient_NH = toward_NH * gradients[0][:, None].to(toward_NH.dtype)
        if spread_NH is not None:
            gradient_NH = gradient_NH + spread_NH * gradients[1][:, None].to(spread_NH.dtype)
        return gradient_NH, None, None


def _through_autograd(hidden_NH: Tensor, head: _Head, entropy_gradient: bool) -> TokenLogProbs:
    """A head that trains: each chunk is computed again in the backward pass."""

    def scored(hidden_CH: Tensor, place: slice) -> tuple[Tensor, Tensor]:
        stats = _stats(*head.chunk(hidden_CH, place), toward=False, spread=False)
        return stats.logprobs_C, stats.entropies_C

    parts = [
        checkpoint(scored, hidden_NH[place], place, use_reentrant=False) for place in head.slices() or [slice(0, 0)]
    ]
    entropies_N = torch.cat([part[1] for part in parts])
    return TokenLogProbs(
        torch.cat([part[0] for part in parts]), entropies_N if entropy_gradient else entropies_N.detach()
    )


def _stats(
    logits_CV: Tensor,
    targets_C: Tensor,
    temperature_C: Tensor,
    words_CW: Tensor | None,
    *,
    toward: bool,
    spread: bool,
) -> _Stats:
    """Log-softmax over the legal set in float32, and what follows from it.

    With p the probabilities, z the logits before temperature t, H the entropy: d log p_y / dz = (1[y] - p) / t and
    dH / dz = -p (log p + H) / t.
    """
    scaled_CV = logits_CV.float() / temperature_C[:, None]
    if words_CW is not None:
        scaled_CV = torch.where(_is_legal(words_CW, logits_CV.shape[1]), scaled_CV, _EXCLUDED)
    log_p_CV = scaled_CV - scaled_CV.logsumexp(dim=1, keepdim=True)
    logprobs_C = log_p_CV.gather(1, targets_C[:, None])[:, 0]
    p_CV = log_p_CV.exp()
    entropies_C = -(p_CV * log_p_CV).sum(dim=1)
    toward_CV = spread_CV = None
    if toward:
        is_target_CV = torch.arange(logits_CV.shape[1], device=logits_CV.device) == targets_C[:, None]
        toward_CV = (is_target_CV.float() - p_CV) / temperature_C[:, None]
    if spread:
        spread_CV = -p_CV * (log_p_CV + entropies_C[:, None]) / temperature_C[:, None]
    return _Stats(logprobs_C, entropies_C, toward_CV, spread_CV)


_compiled: Callable[..., _Stats] | None = None


def _compiled_stats() -> Callable[..., _Stats]:
    global _compiled
    if _compiled is None:
        _compiled = torch.compile(_stats, dynamic=True)
    return _compiled


def _is_legal(words_CW: Tensor, vocab_size: int) -> Tensor:
    """[C, V] bool from packed bits."""
    bits_32 = torch.arange(32, device=words_CW.device, dtype=torch.int32)
    return ((words_CW[:, :, None] >> bits_32) & 1).bool().flatten(1)[:, :vocab_size]
