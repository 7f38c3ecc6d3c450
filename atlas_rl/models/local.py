"""Sampling from a Hugging Face model in this process: a Generate for checks, without an engine or a grammar."""

from typing import Any

import torch
from torch import Tensor

from atlas_rl.errors import EngineError
from atlas_rl.runtime.generate import Generate, GenerateRequest, Sampled


def local_generate(model: Any, stop_ids: tuple[int, ...]) -> Generate:
    """A Generate that samples one token after the other, unconstrained.

    The request's structural tag must be None: nothing here could enforce it.
    """

    async def generate(request: GenerateRequest) -> Sampled:
        if request.structural_tag is not None:
            raise EngineError("the local model cannot enforce a structural tag; run with is_constrained=False")
        sampling = request.sampling
        if sampling.top_p != 1 or sampling.top_k > 0:
            raise EngineError(f"the local model samples plainly; got top_p={sampling.top_p}, top_k={sampling.top_k}")
        generator = None if sampling.seed is None else torch.Generator().manual_seed(sampling.seed)
        ids, logprobs = _sample(model, request, stop_ids, generator)
        return Sampled(token_ids=tuple(ids), logprobs=tuple(logprobs), weight_version=0, num_cached_tokens=None)

    return generate


@torch.inference_mode()
def _sample(
    model: Any, request: GenerateRequest, stop_ids: tuple[int, ...], generator: torch.Generator | None
) -> tuple[list[int], list[float]]:
    ids: list[int] = []
    logprobs: list[float] = []
    inputs, cache = list(request.prompt_ids), None
    while len(ids) < request.max_tokens and not (ids and ids[-1] in stop_ids):
        output = model(input_ids=torch.tensor([inputs]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = output.past_key_values
        token_id, logprob = _draw(output.logits[0, -1].float(), request.sampling.temperature, generator)
        ids.append(token_id)
        logprobs.append(logprob)
        inputs = [token_id]
    return ids, logprobs


def _draw(logits_V: Tensor, temperature: float, generator: torch.Generator | None) -> tuple[int, float]:
    """One id and its log-probability in nats after temperature; at temperature 0 the likeliest, before it."""
    logprobs_V = torch.log_softmax(logits_V / (temperature or 1.0), dim=-1)
    if temperature == 0:
        token_id = int(logprobs_V.argmax())
    else:
        token_id = int(torch.multinomial(logprobs_V.exp(), 1, generator=generator))
    return token_id, float(logprobs_V[token_id])
