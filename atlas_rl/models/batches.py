"""Demonstrations as tensors."""

# Shape suffixes: B = episodes of a batch, T = tokens, H = hidden size, N = target tokens of the batch, V = vocabulary.

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from atlas_rl.models.demonstrations import Demonstration


class Batch(NamedTuple):
    """Right-padded episodes; causal attention never looks at the padding, so no mask is needed for it."""

    ids_BT: Tensor
    is_target_BT: Tensor
    """True on the demonstrator's tokens."""


def micro_batches(batch: Sequence[Demonstration], most_tokens: int) -> Iterator[list[Demonstration]]:
    """Episodes of like length together, each group within ``most_tokens`` after padding; at least one episode each."""
    group: list[Demonstration] = []
    for demonstration in sorted(batch, key=_num_tokens):
        if group and (len(group) + 1) * _num_tokens(demonstration) > most_tokens:
            yield group
            group = []
        group.append(demonstration)
    yield group


def _num_tokens(demonstration: Demonstration) -> int:
    return len(demonstration.prompt_ids) + len(demonstration.response_ids)


def pad(demonstrations: Sequence[Demonstration]) -> Batch:
    """Lay episodes into one rectangle, padding (id 0) on the right."""
    length = max(map(_num_tokens, demonstrations))
    ids_BT = torch.zeros(len(demonstrations), length, dtype=torch.long)
    is_target_BT = torch.zeros(len(demonstrations), length, dtype=torch.bool)
    for place, demonstration in enumerate(demonstrations):
        ids = (*demonstration.prompt_ids, *demonstration.response_ids)
        ids_BT[place, : len(ids)] = torch.tensor(ids)
        mask = torch.tensor(demonstration.response_mask, dtype=torch.bool)
        is_target_BT[place, len(demonstration.prompt_ids) : len(ids)] = mask
    return Batch(ids_BT, is_target_BT)


def target_logits(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """[N, V] logits at the places before the demonstrator's tokens, and [N] those tokens, episode after episode."""
    hidden_BTH = model.get_decoder()(input_ids=batch.ids_BT, use_cache=False).last_hidden_state
    is_next_BT = batch.is_target_BT[:, 1:]
    # The output head is the widest product of the model: only the places that are scored go through it.
    logits_NV = model.get_output_embeddings()(hidden_BTH[:, :-1][is_next_BT])
    return logits_NV, batch.ids_BT[:, 1:][is_next_BT]


def target_weights(demonstrations: Sequence[Demonstration], answer_weight: float) -> Tensor:
    """[N] weight of each target in the order of ``target_logits``: ``answer_weight`` where an answer starts, else 1."""
    weights: list[float] = []
    for demonstration in demonstrations:
        num_targets, num_answer = sum(demonstration.response_mask), demonstration.num_answer_tokens
        weights += [1.0] * (num_targets - num_answer) + [answer_weight] + [1.0] * (num_answer - 1)
    return torch.tensor(weights)
