"""An answer that no grader could judge is a fault, never a wrong answer."""

import pytest
from record_builders import trajectory

from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import TerminalReason, Verdict
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.score import score
from atlas_rl.training.unjudged import fault_if_unjudged


def grade(verdict: Verdict) -> Grade:
    return Grade(grader="math", version="1", verdict=verdict, seconds=0.0, detail="truth is unreadable")


def test_an_unjudged_answer_is_a_fault_that_earns_nothing_and_says_why():
    episode = fault_if_unjudged(trajectory().episode, grade(Verdict.UNJUDGED))
    assert episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR
    assert episode.error == "GradingError: math left the answer unjudged: truth is unreadable"
    scored = score(episode, grade(Verdict.UNJUDGED), config=RewardConfig())
    assert (scored.slots, scored.breakdown.training_reward) == ((), 0.0)


@pytest.mark.parametrize("verdict", [Verdict.CORRECT, Verdict.WRONG, Verdict.TIMEOUT])
def test_a_judged_answer_leaves_the_episode_as_it_was(verdict: Verdict):
    episode = trajectory().episode
    assert fault_if_unjudged(episode, grade(verdict)) is episode
