"""Notices that a process which the trainer waits for is gone; verl's replay buffer would wait for it for ever."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from atlas_rl.errors import TrainingError

PERIOD_SECONDS = 10.0


class Heartbeat:
    """Asks each actor now and then whether it is there, and never waits for the answer."""

    def __init__(self, actors: Sequence[Any], name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask nothing yet.

        Args:
            actors: Handles.
            name: What they are, for the message.
            clock: Seconds.
        """
        self._actors = list(actors)
        self._name = name
        self._clock = clock
        self._asked: list[Any] = []
        self._last = clock()

    def check(self) -> None:
        """Look at the answers that have come, and ask again once a period; a busy actor may answer late.

        Raises:
            TrainingError: an actor is gone.
        """
        now = self._clock()
        if now - self._last < PERIOD_SECONDS:
            return
        self._last = now
        if self._asked:
            answered, self._asked = ray.wait(self._asked, num_returns=len(self._asked), timeout=0)
            for answer in answered:
                try:
                    ray.get(answer)
                except RayActorError as error:
                    said = " ".join(str(error).split())
                    raise TrainingError(f"{self._name} died: {said}; its last words are in the run's log") from error
        if not self._asked:
            self._asked = [actor.__ray_ready__.remote() for actor in self._actors]
