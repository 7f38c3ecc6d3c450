"""Math equivalence of two final answers by math-verify, in processes that can be stopped."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from atlas_rl.errors import GradingError
from atlas_rl.grading.workers import Outcome, WorkerPool
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import Verdict

WORKER = Path(__file__).with_name("math_worker.py")
"""The program that a grading process runs; its docstring states the rules of a verdict."""

_VERDICTS = {
    Outcome.TIMEOUT: Verdict.TIMEOUT,
    Outcome.DIED: Verdict.UNJUDGED,
}


class MathGrader:
    """Correct if math-verify finds the answer equal to the truth; works from any thread or event loop."""

    name = "math"

    def __init__(self, *, time_limit_seconds: float = 5.0, num_workers: int = 2) -> None:
        """Describe the grader; its processes start with the first answers.

        Args:
            time_limit_seconds: Wall time one verdict may take, above 0; waiting for a free process is not part of it.
            num_workers: Most processes alive at once.

        Raises:
            ConfigError: a number is out of its range.
        """
        # -P keeps the script's folder, where this math.py lies, off the path of the standard library.
        self._pool = WorkerPool(
            (sys.executable, "-P", str(WORKER), str(time_limit_seconds)),
            num_workers=num_workers,
            time_limit_seconds=time_limit_seconds,
        )
        self._threads = ThreadPoolExecutor(max_workers=num_workers, thread_name_prefix="math-grader")
        packages = ("math-verify", "latex2sympy2_extended", "sympy")
        self.version = ", ".join(["1", *(f"{package} {version(package)}" for package in packages)])

    @property
    def num_workers(self) -> int:
        """Most processes alive at once."""
        return self._pool.num_workers

    async def grade(self, answer: str, ground_truth: str) -> Grade:
        """Ask a process for one verdict."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.grade_blocking, answer, ground_truth)

    def grade_blocking(self, answer: str, ground_truth: str) -> Grade:
        """The same, for callers without an event loop."""
        try:
            reply = self._pool.ask({"answer": answer, "ground_truth": ground_truth})
        except GradingError as error:
            return self._grade(Verdict.UNJUDGED, 0.0, str(error))
        if reply.outcome is not Outcome.ANSWERED:
            return self._grade(_VERDICTS[reply.outcome], reply.seconds, reply.detail)
        return self._grade(Verdict(reply.body["verdict"]), reply.seconds, reply.body["detail"])

    def close(self) -> None:
        """End all processes, after the answers in flight."""
        self._pool.close()

    def _grade(self, verdict: Verdict, seconds: float, detail: str) -> Grade:
        return Grade(grader=self.name, version=self.version, verdict=verdict, seconds=seconds, detail=detail)
