from typing import Any

import pytest

from atlas_rl.errors import EngineError
from atlas_rl.records.vocabulary import Finish, FinishSource
from atlas_rl.runtime.generate import Sampled
from atlas_rl.runtime.sampled import check_sampled

END, OTHER_END = 9, 8
EOS, CUT = (Finish.EOS, FinishSource.STOP_TOKEN), (Finish.LENGTH, FinishSource.MAX_TOKENS)


def check(
    ids: tuple[Any, ...], max_tokens: int, *, logprobs: tuple[Any, ...] | None = None, vocab_size: int | None = 10
) -> tuple[Finish, FinishSource]:
    sampled = Sampled(
        token_ids=ids,
        logprobs=(-0.5,) * len(ids) if logprobs is None else logprobs,
        weight_version=0,
        num_cached_tokens=None,
    )
    return check_sampled(sampled, max_tokens=max_tokens, stop_ids=(END, OTHER_END), vocab_size=vocab_size)


@pytest.mark.parametrize(
    ("ids", "max_tokens", "finish"),
    [
        ((1, END), 5, EOS),
        ((1, OTHER_END), 5, EOS),
        ((END,), 1, EOS),  # a stop on the last token of the budget is a stop
        ((1, END), 2, EOS),
        ((1, 2), 2, CUT),
        ((1,), 1, CUT),
    ],
)
def test_the_finish_is_read_from_the_last_token_and_the_budget(
    ids: tuple[int, ...], max_tokens: int, finish: tuple[Finish, FinishSource]
) -> None:
    assert check(ids, max_tokens) == finish


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ((), "sampled no token of 3 asked for"),
        ((1, 2, 3, END), "sampled 4 tokens of 3 asked for"),
        ((1, -1, END), "sampled id -1 at place 1, not an int in"),
        ((1, 10, END), r"sampled id 10 at place 1, not an int in \[0, 10\)"),
        ((1, "2", END), "sampled id '2' at place 1"),
        ((1, True, END), "sampled id True at place 1"),
        ((OTHER_END, END), "went on after stop id 8 at place 0 of 2"),
        ((1, 2), "stopped after 2 of 3 tokens on id 2"),
    ],
)
def test_ids_that_no_healthy_engine_answers_are_refused_with_the_values_seen(
    ids: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        check(ids, 3)


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        ((-0.5,), "2 ids but 1 logprobs"),
        ((-0.5, -0.5, -0.5), "2 ids but 3 logprobs"),
        ((-0.5, float("nan")), "logprob nan for id 9 at place 1"),
        ((float("-inf"), -0.5), "logprob -inf for id 1 at place 0"),
        ((-0.5, None), "logprob None for id 9 at place 1"),
    ],
)
def test_logprobs_that_cannot_be_trained_on_are_refused(logprobs: tuple[Any, ...], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        check((1, END), 3, logprobs=logprobs)


def test_ids_are_only_bounded_if_the_vocabulary_is_known() -> None:
    assert check((10**6, END), 5, vocab_size=None) == EOS
