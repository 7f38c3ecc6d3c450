"""The rule for answers from a closed list: the same text, spaces around it aside."""

from time import perf_counter

from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import Verdict


class ExactGrader:
    """Correct if answer and truth are equal after removing white space at both ends; case matters."""

    name = "exact"
    version = "1"

    async def grade(self, answer: str, ground_truth: str) -> Grade:
        """Compare two texts."""
        start = perf_counter()
        verdict = Verdict.CORRECT if answer.strip() == ground_truth.strip() else Verdict.WRONG
        return Grade(grader=self.name, version=self.version, verdict=verdict, seconds=perf_counter() - start, detail="")
