"""Weights from the actor to the rollout, with an end to waiting.

verl's sender waits for ever for a receiver whose process met an error: the error is in the log, and the run stands
still.
"""

from typing import Any

import ray

from atlas_rl.errors import TrainingError


def deliver_within(manager: Any, seconds: float) -> None:
    """Let a CheckpointEngineManager's ``update_weights`` raise instead of waiting for ever.

    Args:
        manager: Of a trainer that shares its devices with the rollout (``backend`` naive).
        seconds: Wall time that one delivery may take.

    Raises:
        TrainingError: by ``manager.update_weights``, when a delivery takes longer.
    """

    def update_weights(global_steps: int) -> None:
        waiting = manager.actor_wg.update_weights(global_steps=global_steps, mode=manager.backend)
        try:
            ray.get(waiting, timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            raise TrainingError(
                f"step {global_steps}: the rollout did not take the weights within {seconds:g} s; its own error is "
                "above this one in the run's log, or raise atlas.run.delivery_timeout_seconds"
            ) from None

    manager.update_weights = update_weights
