"""What a grader is, and which one a benchmark uses."""

import atexit
import os
from typing import Protocol

from atlas_rl.errors import ConfigError
from atlas_rl.grading.exact import ExactGrader
from atlas_rl.grading.math import MathGrader
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import Verdict


class Grader(Protocol):
    """Says whether a submitted answer is right; it sees the answer and the truth, nothing else of the episode."""

    @property
    def name(self) -> str:
        """What records call it."""
        ...

    @property
    def version(self) -> str:
        """Everything that could change a verdict: its own rules and the packages it asks."""
        ...

    async def grade(self, answer: str, ground_truth: str) -> Grade:
        """One verdict; trouble of the grader itself is a verdict too, never an exception."""
        ...


def no_answer_grade() -> Grade:
    """The grade of an episode without a submit: no grader ran."""
    return Grade(grader="none", version="1", verdict=Verdict.NO_ANSWER, seconds=0.0, detail="nothing was submitted")


_graders: dict[tuple[int, str, float], Grader] = {}


def grader_for(name: str, *, time_limit_seconds: float = 5.0) -> Grader:
    """The grader that a benchmark names, one for each process: repeated calls give the same object.

    Args:
        name: `Benchmark.grader`.
        time_limit_seconds: Wall time that one verdict may take; the exact grader needs none.

    Raises:
        ConfigError: no grader has this name, or the limit is not positive.
    """
    key = (os.getpid(), name, time_limit_seconds)
    if key not in _graders:
        if name == "exact":
            _graders[key] = ExactGrader()
        elif name == "math":
            math_grader = MathGrader(time_limit_seconds=time_limit_seconds)
            atexit.register(math_grader.close)
            _graders[key] = math_grader
        else:
            raise ConfigError(f"grader {name!r} is not known; use exact or math")
    return _graders[key]
