"""How well a model plays: on demonstrations that it has not seen, and on its own."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import log_softmax

from atlas_rl.models.batches import micro_batches, pad, target_logits
from atlas_rl.models.demonstrations import Demonstration, Protocol
from atlas_rl.models.local import local_generate
from atlas_rl.records.episode import Sampling
from atlas_rl.records.turns import turns
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.runtime.episode import EpisodeResult, run_episode
from atlas_rl.runtime.identity import Identity
from atlas_rl.runtime.limits import Limits
from atlas_rl.tasks.notes import NOTES
from atlas_rl.tasks.row import Row


class Measured(NamedTuple):
    """A model on demonstrations; fields as in ``WarmStartReport``."""

    held_out_loss: float
    answer_accuracy: float
    answer_probability: float
    answer_probability_by_explores: dict[int, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A model's own episodes at temperature 1, without a grammar."""

    num_episodes: int
    submitted_share: float
    """Ended in a submit; the rest broke the protocol or ran out of tokens."""
    plurality_share: float
    """Of the submits, those whose answer is one of the most frequent answers revealed."""
    mean_explores: float
    mean_response_tokens: float
    max_response_tokens: int
    wrong_notes_per_episode: float | None
    """Turns whose text before the call is not the benchmark's note; None: the benchmark has no notes."""


@torch.inference_mode()
def measure(model: Any, demonstrations: Sequence[Demonstration], micro_batch_tokens: int) -> Measured:
    """Score every demonstrator token, given all before it."""
    loss_sum, num_targets = 0.0, 0
    is_likeliest: list[bool] = []
    by_explores: defaultdict[int, list[float]] = defaultdict(list)
    for micro in micro_batches(demonstrations, micro_batch_tokens):
        logits_NV, targets_N = target_logits(model, pad(micro))
        logprobs_N = log_softmax(logits_NV.float(), dim=-1).gather(1, targets_N[:, None])[:, 0]
        is_argmax_N = logits_NV.argmax(dim=-1) == targets_N
        loss_sum -= float(logprobs_N.sum())
        num_targets += len(targets_N)
        end = 0
        for demonstration in micro:
            end += sum(demonstration.response_mask)
            answer = slice(end - demonstration.num_answer_tokens, end)
            is_likeliest.append(bool(is_argmax_N[answer].all()))
            by_explores[demonstration.num_explores].append(float(logprobs_N[answer].sum().exp()))
    probabilities = [value for values in by_explores.values() for value in values]
    return Measured(
        held_out_loss=loss_sum / num_targets,
        answer_accuracy=sum(is_likeliest) / len(is_likeliest),
        answer_probability=sum(probabilities) / len(probabilities),
        answer_probability_by_explores={k: sum(by_explores[k]) / len(by_explores[k]) for k in sorted(by_explores)},
    )


async def check_episodes(model: Any, protocol: Protocol, rows: Sequence[Row], limits: Limits, seed: int) -> Check:
    """Let the model play each row once."""
    results = [await _play(model, protocol, row, limits, seed) for row in rows]
    submits = [result for result in results if result.episode.terminal_reason is TerminalReason.SUBMITTED]
    num_plurality = sum(_is_plurality(result, row) for result, row in zip(results, rows, strict=True))
    lengths = [result.episode.response_tokens for result in results]
    return Check(
        num_episodes=len(results),
        submitted_share=len(submits) / len(results),
        plurality_share=num_plurality / max(1, len(submits)),
        mean_explores=sum(result.episode.explores_executed for result in results) / len(results),
        mean_response_tokens=sum(lengths) / len(lengths),
        max_response_tokens=max(lengths),
        wrong_notes_per_episode=_wrong_notes(protocol, results),
    )


def _wrong_notes(protocol: Protocol, results: Sequence[EpisodeResult]) -> float | None:
    if protocol.benchmark.note is None:
        return None
    note, decode = NOTES[protocol.benchmark.note], protocol.template.decode
    played = [turns(result.episode, result.response_ids, protocol.tokens.call_begin_id) for result in results]
    return sum(decode(turn.text_ids) != note(turn.history) for episode in played for turn in episode) / len(results)


async def _play(model: Any, protocol: Protocol, row: Row, limits: Limits, seed: int) -> EpisodeResult:
    return await run_episode(
        row=row,
        benchmark=protocol.benchmark,
        grammar=protocol.grammar,
        is_constrained=False,
        tokens=protocol.tokens,
        template=protocol.template,
        decode=protocol.template.decode,
        generate=local_generate(model, protocol.tokens.stop_ids),
        limits=limits,
        identity=Identity(
            run_id="warm_start", uid=row.question_id, session_id=0, attempt_id=0, global_steps=0, run_seed=seed
        ),
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=-1, seed=None),
    )


def _is_plurality(result: EpisodeResult, row: Row) -> bool:
    """Whether the submitted answer is one of the most frequent revealed; with nothing revealed, never."""
    counts = Counter(candidate.answer for candidate in row.candidates[: result.episode.explores_executed])
    answer = result.submitted_answer
    return answer is not None and counts[answer] > 0 and counts[answer] == max(counts.values())
