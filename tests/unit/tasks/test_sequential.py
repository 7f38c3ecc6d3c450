"""What the policy reads: never a label, and nothing past max_explores."""

from decimal import Decimal

import pytest

from atlas_rl.errors import DataError
from atlas_rl.tasks.benchmark import BENCHMARKS, load_benchmark
from atlas_rl.tasks.row import Candidate, Row
from atlas_rl.tasks.sequential import messages, observation_payload, observation_text


def candidate(answer: str, reasoning: str = "", *, timed_out: bool = False, is_correct: bool = False) -> Candidate:
    """A candidate for a dollar."""
    return Candidate(
        answer=answer, reasoning=reasoning, cost_usd=Decimal(1), timed_out=timed_out, is_correct=is_correct
    )


def row(*candidates: Candidate, max_explores: int) -> Row:
    """A row with the given candidates."""
    return Row(
        question_id="q0", question="How many?", benchmark="gsm8k", permutation_id="p0", max_explores=max_explores,
        candidates=candidates, ground_truth="4", data_source="gsm8k",
    )  # fmt: skip


def test_the_opening_is_the_system_prompt_and_the_question() -> None:
    urn = load_benchmark("urn")
    assert messages(urn, row(candidate("4"), max_explores=1)) == [
        {"role": "system", "content": "Find the hidden letter."},
        {"role": "user", "content": "How many?"},
    ]


def test_explore_k_shows_candidate_k() -> None:
    two = row(candidate("3", "1+2=3"), candidate("4", "2+2=4"), max_explores=2)
    gsm8k = load_benchmark("gsm8k")
    assert observation_text(gsm8k, two, 1) == "Candidate 1 of 2:\n1+2=3\nAnswer: 3"
    assert observation_text(gsm8k, two, 2) == "Candidate 2 of 2:\n2+2=4\nAnswer: 4"
    assert observation_text(load_benchmark("urn"), two, 2) == "4"


def test_braces_in_a_candidate_are_shown_as_they_are() -> None:
    tricky = row(candidate("{answer}", "{k} {0} {"), max_explores=1)
    assert observation_text(load_benchmark("gsm8k"), tricky, 1) == "Candidate 1 of 1:\n{k} {0} {\nAnswer: {answer}"


def test_a_timed_out_candidate_has_its_own_text() -> None:
    slow = row(candidate("", timed_out=True), max_explores=1)
    assert observation_text(load_benchmark("gsm8k"), slow, 1) == "Candidate 1 of 1 timed out without an answer."


def test_the_label_is_in_the_payload_and_not_in_the_text() -> None:
    wrong, right = row(candidate("4"), max_explores=1), row(candidate("4", is_correct=True), max_explores=1)
    assert observation_payload(right, 1) == {"answer": "4", "reasoning": "", "timed_out": False, "is_correct": True}
    assert observation_text(load_benchmark("gsm8k"), wrong, 1) == observation_text(load_benchmark("gsm8k"), right, 1)


@pytest.mark.parametrize("k", [0, 2])
def test_an_explore_past_max_explores_is_refused_even_if_a_candidate_is_there(k: int) -> None:
    capped = row(candidate("3"), candidate("4"), max_explores=1)
    with pytest.raises(DataError, match=f"row 'q0': explore {k} is outside 1..1"):
        observation_text(load_benchmark("gsm8k"), capped, k)


@pytest.mark.parametrize("name", sorted(file.stem for file in BENCHMARKS.glob("*.yaml")))
def test_every_surface_loads_and_submits_its_submission_field(name: str) -> None:
    benchmark = load_benchmark(name)
    assert benchmark.name == name
    assert benchmark.submit.parameters["required"] == [benchmark.submission_field]
    assert benchmark.submit.parameters["additionalProperties"] is False
    assert benchmark.explore.parameters["properties"] == {}
