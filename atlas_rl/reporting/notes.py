"""How right the notes of a run stay: the free texts before its calls against the one right text of each, by step.

Everything but the metrics of the update is read back from the stored records.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path
from typing import Any

from atlas_rl.errors import RecordError
from atlas_rl.records.base import Record
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.turns import turns
from atlas_rl.records.vocabulary import Partition, TerminalReason
from atlas_rl.reporting.metrics import read_metrics

Decode = Callable[[Sequence[int]], str]
"""Ids to text, control tokens spelled out."""

Note = Callable[[Sequence[str]], str]
"""The right text before a call, given the answers revealed so far in order."""

JOINED: Mapping[str, str] = {
    "actor_entropy": "actor/entropy",
    "policy_entropy": "policy/entropy",
    "ppo_kl": "actor/ppo_kl",
    "engine_difference": "mismatch/free/logprob_difference_mean",
}
"""Column to metric of metrics.jsonl. What the entropies and the KL are over follows atlas.policy, so they compare
within a mode; ``note_nats`` compares across modes."""


class NotesAtStep(Record):
    """One step's training episodes, or one validation, of one run."""

    partition: Partition
    step: int
    """train: the step that the episodes were sampled for, by the weights before its update; val: updates so far."""
    episodes: int
    """Without those that ended in infrastructure_error."""
    infrastructure_errors: int
    notes: float
    """Turns an episode: each opens with a text, right or wrong, which may be empty."""
    wrong_notes: float
    """An episode: turns whose text before the call is not the right one. A turn without a call is text throughout."""
    wrong_share: float
    """Of all notes."""
    text_tokens: float
    """Sampled tokens before the call, a turn."""
    note_nats: float
    """Minus the engine's log-probability of a turn's text and of the token that ends it, a turn: at temperature 1 an
    unbiased estimate of the entropy of what is written before a call, over the legal tokens in every mode."""
    utility: float
    explores: float
    actor_entropy: float | None = None
    """Nats a token. The metrics of JOINED are None on validations, and where the run did not log them."""
    policy_entropy: float | None = None
    """Nats a token that trains the policy."""
    ppo_kl: float | None = None
    engine_difference: float | None = None
    """Mean absolute difference of the engine's and the trainer's log-probability of tokens that had an alternative."""


@dataclass(slots=True)
class _Sums:
    """Running totals of one step and attempt."""

    infrastructure_errors: int = 0
    num_notes: int = 0
    num_wrong: int = 0
    num_text_tokens: int = 0
    nats: list[float] = field(default_factory=list)
    utilities: list[float] = field(default_factory=list)
    explores: list[int] = field(default_factory=list)

    def add(self, row: Trajectory, call_begin_id: int, decode: Decode, note: Note) -> None:
        if row.episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR:
            self.infrastructure_errors += 1
            return
        for turn in turns(row.episode, row.response_ids, call_begin_id):
            self.num_notes += 1
            self.num_wrong += decode(turn.text_ids) != note(turn.history)
            self.num_text_tokens += len(turn.text_ids)
            self.nats += [-value for value in row.response_logprobs[turn.text_start : turn.decided_end]]
        self.utilities.append(row.reward.utility)
        self.explores.append(row.reward.num_explores)

    def at(self, partition: Partition, step: int, joined: Mapping[str, float | None]) -> NotesAtStep:
        episodes = len(self.utilities)
        return NotesAtStep(
            partition=partition,
            step=step,
            episodes=episodes,
            infrastructure_errors=self.infrastructure_errors,
            notes=self.num_notes / episodes,
            wrong_notes=self.num_wrong / episodes,
            wrong_share=self.num_wrong / self.num_notes,
            text_tokens=self.num_text_tokens / self.num_notes,
            note_nats=fsum(self.nats) / self.num_notes,
            utility=fsum(self.utilities) / episodes,
            explores=sum(self.explores) / episodes,
            **joined,
        )


def read_notes(run: Path, *, call_begin_id: int, decode: Decode, note: Note) -> list[NotesAtStep]:
    """Every training step of a run and then every validation, in order.

    Of a step that a resume drew again the latest attempt counts. A step whose episodes all ended in
    infrastructure_error is left out, and so are training rows that the run did not store (``train_fraction``).

    Args:
        run: artifacts/RUN.
        call_begin_id: The token that opens a call, of the run's tokenizer.
        decode: Of the run's tokenizer.
        note: Of the run's benchmark.

    Raises:
        RecordError: there is no such run, it has stored nothing, or a file of it is damaged.
    """
    if not run.is_dir():
        raise RecordError(f"run {run}: no such folder; give artifacts/RUN")
    sums: dict[tuple[Partition, int], dict[int, _Sums]] = defaultdict(lambda: defaultdict(_Sums))
    for row in _rows(run):
        sums[row.partition, row.global_steps][row.attempt_id].add(row, call_begin_id, decode, note)
    if not sums:
        raise RecordError(f"run {run}: neither train/ nor val/ holds an episode; let it finish a step first")
    metrics = _metrics_by_step(run / "metrics.jsonl")
    steps = []
    for partition, step in sorted(sums, key=lambda place: (place[0] is Partition.VAL, place[1])):
        attempts = sums[partition, step]
        latest = attempts[max(attempts)]
        if latest.utilities:
            joined = metrics.get(step, {}) if partition is Partition.TRAIN else {}
            steps.append(latest.at(partition, step, joined))
    return steps


def _rows(run: Path) -> Iterator[Trajectory]:
    for name in ("train", "val"):
        if (run / name).is_dir():
            yield from TrajectoryStore(run / name)


def _metrics_by_step(path: Path) -> dict[int, dict[str, float | None]]:
    """The columns of JOINED by step; of a step that was run again the last value."""
    by_step: dict[int, dict[str, float | None]] = defaultdict(dict)
    lines: Sequence[dict[str, Any]] = read_metrics(path).lines if path.is_file() else ()
    for line in lines:
        by_step[line["step"]] |= {column: line[key] for column, key in JOINED.items() if key in line}
    return dict(by_step)
