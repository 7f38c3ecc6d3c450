"""A pool keeps its size and its promises whatever its workers do."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import psutil
import pytest

from atlas_rl.errors import ConfigError, GradingError
from atlas_rl.grading.workers import Outcome, WorkerPool

PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("hanging_worker.py")))


def pool(*, num_workers: int = 2, time_limit_seconds: float = 20.0) -> WorkerPool:
    """A pool of workers that obey."""
    return WorkerPool(PROGRAM, num_workers=num_workers, time_limit_seconds=time_limit_seconds)


@pytest.fixture
def one() -> Iterator[WorkerPool]:
    """A pool of one worker, closed at the end."""
    single = pool(num_workers=1)
    yield single
    single.close()


def test_a_worker_is_reused(one: WorkerPool) -> None:
    assert one.ask({"do": "answer"}).body["pid"] == one.ask({"do": "answer"}).body["pid"]


def test_a_worker_that_dies_is_replaced_and_its_request_is_told(one: WorkerPool) -> None:
    before = one.ask({"do": "answer"}).body["pid"]
    died = one.ask({"do": "die"})
    assert (died.outcome, died.body, died.detail) == (Outcome.DIED, {}, "worker ended with exit code 3")
    assert one.ask({"do": "answer"}).body["pid"] != before


def test_a_worker_killed_while_idle_is_replaced_unseen(one: WorkerPool) -> None:
    victim = psutil.Process(one.ask({"do": "answer"}).body["pid"])
    victim.kill()
    while victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE:
        pass
    assert one.ask({"do": "answer"}).outcome is Outcome.ANSWERED


def test_an_answer_that_is_no_json_counts_as_death(one: WorkerPool) -> None:
    babbled = one.ask({"do": "babble"})
    assert (babbled.outcome, babbled.detail) == (Outcome.DIED, "worker answered no JSON object: b'not json'")


def test_a_request_larger_than_a_pipe_arrives_whole(one: WorkerPool) -> None:
    assert one.ask({"do": "answer", "text": "x" * 1_000_000}).body["length"] == 1_000_000


def test_after_a_hundred_hangs_the_pool_is_as_large_as_before() -> None:
    hung = pool(num_workers=2, time_limit_seconds=0.02)
    try:
        replies = [hung.ask({"do": "hang"}) for _ in range(100)]
        assert {reply.outcome for reply in replies} == {Outcome.TIMEOUT}
        assert max(reply.seconds for reply in replies) < 5
        assert replies[0].detail == "stopped at the limit of 0.02 s"
        assert _children_of_program() == []
        assert hung.num_workers == 2
        # Both slots still serve, at the same time.
        started = monotonic()
        threads = [threading.Thread(target=hung.ask, args=({"do": "hang"},)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert monotonic() - started < 30
    finally:
        hung.close()


def test_never_more_workers_than_allowed_under_many_threads() -> None:
    shared_pool = pool(num_workers=2)
    pids: set[int] = set()
    threads = [
        threading.Thread(target=lambda: pids.add(shared_pool.ask({"do": "answer"}).body["pid"])) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert 1 <= len(pids) <= 2
    shared_pool.close()
    assert _children_of_program() == []


def test_a_program_that_cannot_start_is_a_grading_error_and_costs_no_slot() -> None:
    broken = WorkerPool(
        (sys.executable, "-c", "raise SystemExit(7)"), num_workers=1, time_limit_seconds=1, start_limit_seconds=20
    )
    for _ in range(2):
        with pytest.raises(GradingError, match=r"not ready .* exit code 7"):
            broken.ask({})
    with pytest.raises(GradingError, match="cannot start"):
        WorkerPool(("/no/such/program",), num_workers=1, time_limit_seconds=1).ask({})


def test_a_pool_of_no_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_workers >= 1"):
        pool(num_workers=0)
    with pytest.raises(ConfigError, match="limits above 0 s"):
        pool(time_limit_seconds=float("nan"))


def _children_of_program() -> list[int]:
    return [
        child.pid
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and PROGRAM[-1] in child.cmdline()
    ]
