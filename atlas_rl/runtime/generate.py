"""The runtime's one door to a model: a sampling call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from atlas_rl.records.episode import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One generation to sample."""

    request_id: str
    """The same for all turns of an episode: engines route it to the replica that has the prefix cached."""
    prompt_ids: Sequence[int]
    """[P + T so far] the whole context, verbatim."""
    max_tokens: int
    structural_tag: str | None
    """JSON of the XGrammar structural tag that constrains it, None: unconstrained."""
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What the engine sampled."""

    token_ids: tuple[int, ...]
    """[N] sampled ids, the end-of-turn token included."""
    logprobs: tuple[float, ...]
    """[N] nats, over the tokens that the grammar allowed, after temperature."""
    weight_version: int
    num_cached_tokens: int | None


class Generate(Protocol):
    """One sampling call; whatever it raises becomes an infrastructure_error of the episode."""

    async def __call__(self, request: GenerateRequest) -> Sampled:
        """Sample one generation of at most ``request.max_tokens`` tokens."""
        ...
