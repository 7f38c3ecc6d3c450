"""A process that dies while the trainer waits for its episodes."""

from collections.abc import Iterator
from typing import Any

import pytest
import ray

from atlas_rl.errors import TrainingError
from atlas_rl.training.heartbeat import PERIOD_SECONDS, Heartbeat

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_a_worker_that_is_there_is_left_alone_and_one_that_died_stops_the_run(cluster: None):
    class Worker:
        """Does nothing; defined here, so that it travels by value."""

    workers: list[Any] = [ray.remote(Worker).remote() for _ in range(2)]
    ray.get([worker.__ray_ready__.remote() for worker in workers])
    clock = Clock()
    heartbeat = Heartbeat(workers, "an agent-loop worker", clock)
    heartbeat.check()  # nothing is due
    for _ in range(3):
        clock.now += PERIOD_SECONDS
        heartbeat.check()
    ray.kill(workers[1])

    def wait() -> None:
        for _ in range(30):
            clock.now += PERIOD_SECONDS
            heartbeat.check()
            ray.get(workers[0].__ray_ready__.remote())  # time for an answer

    with pytest.raises(TrainingError, match=r"an agent-loop worker died: .*its last words are in the run's log"):
        wait()
