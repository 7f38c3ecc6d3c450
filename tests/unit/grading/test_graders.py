"""Verdicts of the rule and of math equivalence, with a bound on time."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlas_rl.errors import ConfigError
from atlas_rl.grading.exact import ExactGrader
from atlas_rl.grading.grader import grader_for, no_answer_grade
from atlas_rl.grading.math import MathGrader
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import Verdict


@pytest.fixture(scope="module")
def math_grader() -> Iterator[MathGrader]:
    """One process for all tests of the module: it takes seconds to start."""
    grader = MathGrader(time_limit_seconds=60, num_workers=1)
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("answer", "truth", "verdict"),
    [
        ("B", "B", Verdict.CORRECT),
        (" B\n", "B", Verdict.CORRECT),
        ("b", "B", Verdict.WRONG),
        ("", "B", Verdict.WRONG),
        ("B or C", "B", Verdict.WRONG),
    ],
)
def test_exact_compares_texts_without_the_space_around_them(answer: str, truth: str, verdict: Verdict) -> None:
    grade = asyncio.run(ExactGrader().grade(answer, truth))
    assert (grade.grader, grade.version, grade.verdict) == ("exact", "1", verdict)


@pytest.mark.parametrize(
    ("answer", "truth", "verdict"),
    [
        ("18", "18", Verdict.CORRECT),
        ("18.0", "18", Verdict.CORRECT),
        ("18.", "18", Verdict.CORRECT),
        ("+18", "18", Verdict.CORRECT),
        ("70,000", "70000", Verdict.CORRECT),
        ("$70,000", "70000", Verdict.CORRECT),
        ("1,000.00", "1000", Verdict.CORRECT),
        ("\\boxed{\\frac13}", "$1/3$", Verdict.CORRECT),
        ("0.333333", "1/3", Verdict.CORRECT),
        ("50%", "0.5", Verdict.CORRECT),
        ("0.33", "1/3", Verdict.WRONG),
        ("17,18", "18", Verdict.WRONG),
        ("18 or 19", "18", Verdict.WRONG),
        ("$17$ or $18$", "18", Verdict.WRONG),
        ("I think 17. 18", "18", Verdict.WRONG),
        ("\\boxed{17} \\boxed{18}", "18", Verdict.WRONG),
        ("17} \\boxed{18", "18", Verdict.WRONG),
        ("", "18", Verdict.WRONG),
        ("\ud83d", "18", Verdict.WRONG),
        ("\x00", "18", Verdict.WRONG),
        ("18", "", Verdict.UNJUDGED),
    ],
)
def test_math_reads_the_whole_answer_and_nothing_but(
    math_grader: MathGrader, answer: str, truth: str, verdict: Verdict
) -> None:
    grade = math_grader.grade_blocking(answer, truth)
    assert grade.verdict is verdict, grade.detail
    assert grade.grader == "math"
    assert grade.version.startswith("1, math-verify ")


def test_math_works_in_threads_and_on_an_event_loop(math_grader: MathGrader) -> None:
    grades: list[Grade] = []
    in_thread = threading.Thread(
        target=lambda: grades.append(asyncio.run(math_grader.grade("\\boxed{\\frac13}", "$1/3$")))
    )
    in_thread.start()
    in_thread.join()

    async def many() -> list[Grade]:
        return await asyncio.gather(*(math_grader.grade(str(number), "3") for number in range(5)))

    grades += asyncio.run(many())
    wrong, right = Verdict.WRONG, Verdict.CORRECT
    #                                            1/3    0      1      2      3      4
    assert [grade.verdict for grade in grades] == [right, wrong, wrong, wrong, right, wrong]


def test_an_answer_that_hangs_math_verify_is_stopped_at_the_limit() -> None:
    grader = MathGrader(time_limit_seconds=1.0, num_workers=1)
    try:
        hung = grader.grade_blocking("10^{10^{10}}", "18")
        assert (hung.verdict, hung.detail) == (Verdict.TIMEOUT, "stopped at the limit of 1 s")
        assert 1 <= hung.seconds < 10
        assert hung.acc == 0
    finally:
        grader.close()


def test_the_hang_case_of_the_shared_list_is_graded_in_a_thread(shared: Path, math_grader: MathGrader) -> None:
    lines = (shared / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    case = next(case for case in map(json.loads, lines) if case["id"] == "hang-01")
    assert "verify('$1/3$','\\\\boxed{\\\\frac13}')" in case["input"]["call"]
    verdicts: list[Verdict] = []
    thread = threading.Thread(
        target=lambda: verdicts.append(math_grader.grade_blocking("\\boxed{\\frac13}", "$1/3$").verdict)
    )
    thread.start()
    thread.join()
    assert verdicts == [Verdict.CORRECT]


def test_no_answer_is_a_verdict_of_its_own() -> None:
    assert (no_answer_grade().verdict, no_answer_grade().acc) == (Verdict.NO_ANSWER, 0)


def test_a_process_has_one_grader_of_a_name() -> None:
    assert grader_for("exact") is grader_for("exact")
    assert grader_for("math") is grader_for("math")
    with pytest.raises(ConfigError, match="grader 'judge' is not known; use exact or math"):
        grader_for("judge")
