"""What becomes of an episode whose answer no grader could judge."""

from atlas_rl.records.episode import Episode
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import TerminalReason, Verdict


def fault_if_unjudged(episode: Episode, grade: Grade) -> Episode:
    """The episode, ended in infrastructure_error if its answer is unjudged: a grader's trouble is no wrong answer.

    A time limit of the grader stays a verdict: the policy wrote what could not be read in time.
    """
    if grade.verdict is not Verdict.UNJUDGED:
        return episode
    error = f"GradingError: {grade.grader} left the answer unjudged: {grade.detail}"
    return episode.model_copy(update={"terminal_reason": TerminalReason.INFRASTRUCTURE_ERROR, "error": error})
