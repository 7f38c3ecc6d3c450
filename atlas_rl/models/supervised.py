"""Supervised training on demonstrations."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from rich.progress import track
from torch.nn.functional import cross_entropy

from atlas_rl.models.batches import micro_batches, pad, target_logits, target_weights
from atlas_rl.models.demonstrations import Demonstration


def train(
    model: Any,
    demonstrations: Sequence[Demonstration],
    *,
    batch_episodes: int,
    micro_batch_tokens: int,
    learning_rate: float,
    rise_steps: int,
    answer_weight: float = 1.0,
) -> list[float]:
    """One pass in the given order, cross-entropy on the demonstrator's tokens alone.

    Args:
        model: Hugging Face causal language model; changed in place.
        demonstrations: A multiple of ``batch_episodes``.
        batch_episodes: Episodes of an optimizer step.
        micro_batch_tokens: Most tokens, padding included, in one forward pass.
        learning_rate: Peak of AdamW's rate.
        rise_steps: Steps of its linear rise; a cosine takes it to 0 at the end.
        answer_weight: Weight of a submitted answer's first token; every other token has 1.

    Returns:
        [num_steps] nats a token of each step before its update, unweighted.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    num_steps = len(demonstrations) // batch_episodes
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_factor(step, num_steps, rise_steps))
    model.train()
    losses = []
    for step in track(range(num_steps), description="warm start"):
        batch = demonstrations[step * batch_episodes : (step + 1) * batch_episodes]
        num_targets = sum(sum(demonstration.response_mask) for demonstration in batch)
        loss_sum = 0.0
        for micro in micro_batches(batch, micro_batch_tokens):
            logits_NV, targets_N = target_logits(model, pad(micro))
            # Over the tokens of the whole step, so that the cut into micro-batches cannot change the gradient.
            loss_N = cross_entropy(logits_NV, targets_N, reduction="none") / num_targets
            (loss_N * target_weights(micro, answer_weight)).sum().backward()  # type: ignore[no-untyped-call]
            loss_sum += float(loss_N.detach().sum())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        rate.step()
        losses.append(loss_sum)
    model.eval()
    return losses


def _rate_factor(step: int, num_steps: int, rise_steps: int) -> float:
    return min(1.0, (step + 1) / rise_steps) * (0.5 + 0.5 * math.cos(math.pi * step / num_steps))
