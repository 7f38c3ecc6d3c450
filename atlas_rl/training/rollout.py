"""verl's agent-loop worker and manager, carrying what this project's loop needs and no more."""

from typing import Any

import ray
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

import atlas_rl.training.loop  # noqa: F401  (registers atlas_sequential in the worker's process)

_KEPT_COLUMNS = ("uid", "session_id", "global_steps", "data_source")
"""Dataset columns that travel on with a finished row. Its candidates do not: verl hands every field of every row to
every training worker in every phase, and the record already holds what happened."""

# verl's worker is already a Ray actor class, which cannot be subclassed; its plain class can.
_PlainWorker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class


class AtlasAgentLoopWorker(_PlainWorker):  # type: ignore[misc]
    """Runs episodes of its share of a batch."""

    async def _run_agent_loop(self, sampling_params: dict[str, Any], trajectory: dict[str, Any], **kwargs: Any) -> Any:
        params = {**sampling_params, "validate": trajectory["validate"]}
        return await super()._run_agent_loop(params, trajectory, **kwargs)

    async def _agent_loop_postprocess(self, output: AgentLoopOutput, validate: bool, **kwargs: Any) -> None:
        await super()._agent_loop_postprocess(output, validate, **{key: kwargs[key] for key in _KEPT_COLUMNS})


class AtlasAgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """Spreads batches over this project's workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(AtlasAgentLoopWorker)
