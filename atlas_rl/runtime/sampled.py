"""The check of an engine's answer, before any of it enters the token stream."""

import math
from collections.abc import Sequence

from atlas_rl.errors import EngineError
from atlas_rl.records.vocabulary import Finish, FinishSource
from atlas_rl.runtime.generate import Sampled


def check_sampled(
    sampled: Sampled, *, max_tokens: int, stop_ids: Sequence[int], vocab_size: int | None
) -> tuple[Finish, FinishSource]:
    """Say how a generation ended, or refuse it: what a broken engine sampled is nothing the policy did.

    A stop token at the very end of a full budget is an end of turn, not a cut.

    Args:
        sampled: What the engine answered.
        max_tokens: Most tokens it was asked for.
        stop_ids: Every id that ends a turn.
        vocab_size: Ids lie in [0, vocab_size); None: any id from 0 is accepted.

    Raises:
        EngineError: no healthy engine answers this; the message has the values seen.
    """
    ids, logprobs = sampled.token_ids, sampled.logprobs
    num_ids = math.inf if vocab_size is None else vocab_size
    if not ids:
        raise EngineError(f"engine sampled no token of {max_tokens} asked for; look for an aborted request in its log")
    if len(ids) > max_tokens:
        raise EngineError(f"engine sampled {len(ids)} tokens of {max_tokens} asked for; pass max_tokens on to it")
    if len(ids) != len(logprobs):
        raise EngineError(f"engine gave {len(ids)} ids but {len(logprobs)} logprobs; ask it for the sampled logprobs")
    for place, (token_id, logprob) in enumerate(zip(ids, logprobs, strict=True)):
        if type(token_id) is not int or not 0 <= token_id < num_ids:
            raise EngineError(f"engine sampled id {token_id!r} at place {place}, not an int in [0, {num_ids})")
        if not isinstance(logprob, float) or not math.isfinite(logprob):
            raise EngineError(f"engine gave logprob {logprob!r} for id {token_id} at place {place}, not a finite float")
        if token_id in stop_ids and place < len(ids) - 1:
            raise EngineError(
                f"engine went on after stop id {token_id} at place {place} of {len(ids)}; stop it on all of {stop_ids}"
            )
    if ids[-1] in stop_ids:
        return Finish.EOS, FinishSource.STOP_TOKEN
    if len(ids) == max_tokens:
        return Finish.LENGTH, FinishSource.MAX_TOKENS
    raise EngineError(
        f"engine stopped after {len(ids)} of {max_tokens} tokens on id {ids[-1]}, which is none of the stop ids "
        f"{stop_ids}: the request was aborted, or the engine stops on an id that the protocol does not know"
    )
