"""The runtime's Generate over verl's rollout servers."""

from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient

from atlas_rl.errors import EngineError, blame
from atlas_rl.runtime.generate import GenerateRequest, Sampled


class ServerGenerate:
    """Samples from one rollout replica, the same for all turns of an episode so that its prefix stays cached.

    The replica is asked for once an episode and handed back at the end, not once a turn: a call to the load balancer
    costs as much as a short generation. Use as an async context manager.
    """

    def __init__(self, client: LLMServerClient, request_id: str) -> None:
        self._client = client
        self._request_id = request_id
        self._server_id: str | None = None
        self._server: Any = None

    async def __aenter__(self) -> "ServerGenerate":
        """Nothing yet: the replica is chosen with the first prompt, which some balancers look at."""
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Hand the replica back."""
        if self._server_id is not None:
            self._client._release_server(self._server_id, request_id=self._request_id)

    async def __call__(self, request: GenerateRequest) -> Sampled:
        """Sample one generation.

        Raises:
            EngineError: the engine failed, aborted, or gave no log-probabilities.
        """
        params = sampling_params(request)
        with blame(EngineError, f"generation {request.request_id}"):
            if self._server is None:
                self._server_id, self._server = await self._client._acquire_server(
                    self._request_id, prompt_ids=request.prompt_ids, sampling_params=params
                )
            output = await self._server.generate.remote(
                request_id=request.request_id, prompt_ids=list(request.prompt_ids), sampling_params=params
            )
        if output.stop_reason == "aborted" or output.log_probs is None:
            raise EngineError(f"generation {request.request_id}: stop_reason={output.stop_reason!r}, no log-probs")
        return Sampled(
            token_ids=tuple(output.token_ids),
            logprobs=tuple(output.log_probs),
            weight_version=int(output.extra_fields["global_steps"]),
            num_cached_tokens=output.extra_fields.get("num_cached_tokens"),
        )


def sampling_params(request: GenerateRequest) -> dict[str, Any]:
    """What verl's vLLM server takes for a request."""
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    sampling = request.sampling
    params: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "repetition_penalty": 1.0,
        "logprobs": True,
        "detokenize": False,
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    if sampling.seed is not None:
        params["seed"] = sampling.seed
    if request.structural_tag is not None:
        params["structured_outputs"] = StructuredOutputsParams(structural_tag=request.structural_tag)
    return params
