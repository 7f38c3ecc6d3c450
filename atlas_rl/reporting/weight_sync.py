"""weight_sync/: what the rollout answered to a fixed set of prompts after each weight update, and what that proves.

A policy that trains while its rollout samples from old weights looks like slow learning. So the same prompts are asked
greedily after every delivery of weights, and the answers must change exactly when the actor did.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from atlas_rl.errors import RecordError, TrainingError
from atlas_rl.records.base import Record
from atlas_rl.records.json_text import from_json, to_json
from atlas_rl.reporting.manifest import write_atomically

FOLDER = "weight_sync"
SCHEMA_VERSION = 1


class Delivery(StrEnum):
    """How the actor's weights reach the rollout."""

    ADAPTER = "adapter"
    """The LoRA tensors, beside a base that never changes."""
    MERGED = "merged"
    """Whole weights, with the adapter added to the base before they are sent."""
    FULL = "full"
    """Whole weights of a model without an adapter."""


class Answer(Record):
    """One prompt's greedy continuation, of a fixed number of tokens."""

    token_ids: tuple[int, ...]
    """[N] sampled ids."""
    logprobs: tuple[float, ...]
    """[N] nats, over the whole vocabulary."""


class ReplicaReading(Record):
    """What one rollout replica answered."""

    replica: int = Field(ge=0)
    weight_version: int
    """Step whose weights the replica says that it holds."""
    adapter_ids: tuple[int, ...]
    """Adapters that its engine holds; empty under merged and full delivery."""
    num_cached_tokens: int | None
    """Tokens of a long prompt, the same at every reading, that came from the prefix cache, asked before the cache was
    emptied; None: the engine has none."""
    answers: tuple[Answer, ...]
    """[num_prompts], asked one after the other from an empty cache, so that equal weights give equal bits."""


class Comparison(Record):
    """Two readings, token by token, over all replicas."""

    against: str
    """File stem of the other reading."""
    must_change: bool
    """Whether the actor's weights differ between the two."""
    num_tokens: int = Field(ge=0)
    num_changed_tokens: int = Field(ge=0)
    """Places whose id or log-probability differs in any bit."""
    max_difference_nats: float = Field(ge=0)
    """Largest change of a log-probability up to the first different id of an answer, that of the id included: both are
    then the largest of their distribution, and close if it was a tie."""
    num_changed_ids: int = Field(ge=0)


class ProbeReading(Record):
    """One probe of the rollout."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    attempt_id: int = Field(ge=0)
    name: str
    """init, after_step_N, before_validation_N or resume_N."""
    global_steps: int = Field(ge=0)
    follows_sync: bool
    """Whether weights were delivered just before."""
    delivery: Delivery
    actor_updates: int = Field(ge=0)
    critic_updates: int = Field(ge=0)
    actor_sha256: str
    """Over every rank's trainable tensors."""
    critic_sha256: str
    prompts_sha256: str
    """Over the token ids of all prompts, in order."""
    seconds: float = Field(ge=0)
    replicas: tuple[ReplicaReading, ...]
    comparison: Comparison | None
    """With the reading before; None for the first of an attempt that has none to compare with."""

    @property
    def num_tokens(self) -> int:
        """Of all answers of all replicas."""
        return sum(len(answer.token_ids) for replica in self.replicas for answer in replica.answers)

    @property
    def stem(self) -> str:
        """Name of its file: later attempts do not replace what an earlier one saw."""
        return self.name if self.attempt_id == 0 else f"{self.name}.attempt_{self.attempt_id}"


def digest_of(parts: Sequence[object]) -> str:
    """Sha256 (hex) of the parts' representations, in order."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()


def compare(reading: ProbeReading, before: ProbeReading) -> Comparison:
    """Compare a reading with an earlier one of the same prompts.

    Raises:
        TrainingError: the prompts, replicas or answers are not the same in number.
    """
    pairs = [
        (new, old)
        for replica, other in zip(reading.replicas, before.replicas, strict=False)
        for new, old in zip(replica.answers, other.answers, strict=False)
    ]
    shapes = [[len(a.token_ids) for r in one.replicas for a in r.answers] for one in (reading, before)]
    if reading.prompts_sha256 != before.prompts_sha256 or shapes[0] != shapes[1]:
        raise TrainingError(
            f"weight-sync probe {reading.stem}: it asked other prompts or replicas than {before.stem} "
            f"({shapes[0]} against {shapes[1]} tokens an answer); keep atlas.probe and the validation file over a run"
        )
    changed, changed_ids, largest = 0, 0, 0.0
    for new, old in pairs:
        same_so_far = True
        for token, logprob, old_token, old_logprob in zip(
            new.token_ids, new.logprobs, old.token_ids, old.logprobs, strict=True
        ):
            changed += token != old_token or logprob != old_logprob
            changed_ids += token != old_token
            if same_so_far:
                largest = max(largest, abs(logprob - old_logprob))
            same_so_far &= token == old_token
    return Comparison(
        against=before.stem,
        must_change=reading.actor_sha256 != before.actor_sha256,
        num_tokens=sum(shapes[0]),
        num_changed_tokens=changed,
        max_difference_nats=largest,
        num_changed_ids=changed_ids,
    )


def judge(reading: ProbeReading, before: ProbeReading | None, tolerance_nats: float) -> None:
    """Stop the run if the rollout does not hold the actor's weights.

    Args:
        reading: The newest.
        before: The one that ``reading.comparison`` is against.
        tolerance_nats: How far a log-probability may move under equal weights; 0 where kernels are deterministic.

    Raises:
        TrainingError: a replica is on the weights of another step, lacks the adapter, kept a prefix cache of old
            weights, did not change although the actor did, or changed although it did not.
    """
    where = f"step {reading.global_steps}, weight-sync probe {reading.stem}"
    for replica in reading.replicas:
        who = f"{where}: rollout replica {replica.replica}"
        if reading.follows_sync and replica.weight_version != reading.global_steps:
            raise TrainingError(
                f"{who} says that its weights are of step {replica.weight_version}; the delivery did not reach it"
            )
        if reading.delivery is Delivery.ADAPTER and not replica.adapter_ids:
            raise TrainingError(f"{who} holds no adapter and samples from the base; the delivery did not reach it")
        if reading.follows_sync and replica.num_cached_tokens:
            raise TrainingError(
                f"{who} took {replica.num_cached_tokens} prompt tokens from a prefix cache of the weights before; the "
                "cache must be emptied with every delivery"
            )
    comparison = reading.comparison
    if comparison is None or before is None:
        return
    if comparison.must_change:
        _require_change(reading, before, where)
    elif comparison.max_difference_nats > tolerance_nats or (comparison.num_changed_tokens and not tolerance_nats):
        raise TrainingError(
            f"{where}: {comparison.num_changed_tokens} of {comparison.num_tokens} answer tokens changed since "
            f"{comparison.against}, by up to {comparison.max_difference_nats:.3g} nats "
            f"(atlas.probe.tolerance_nats={tolerance_nats:g}), though the actor did not change; the rollout holds "
            "other weights than the actor's, or its kernels are not deterministic"
        )


def _require_change(reading: ProbeReading, before: ProbeReading, where: str) -> None:
    """Each replica must answer otherwise than before: one that missed the delivery hides behind those that got it."""
    for replica, old in zip(reading.replicas, before.replicas, strict=True):
        if replica.answers == old.answers:
            hint = (
                "; with merged delivery an update below the rounding of the rollout's dtype is lost too"
                if reading.delivery is Delivery.MERGED
                else ""
            )
            raise TrainingError(
                f"{where}: the actor changed since {before.stem} (updates {before.actor_updates} -> "
                f"{reading.actor_updates}), but every answer token of rollout replica {replica.replica} is what it was "
                f"to the last bit; the rollout was left on old weights{hint}"
            )


def write_reading(run_folder: Path, reading: ProbeReading) -> Path:
    """Write weight_sync/STEM.json and return its path."""
    path = run_folder / FOLDER / f"{reading.stem}.json"
    write_atomically(path, to_json(reading, indent=1) + b"\n")
    return path


def read_readings(run_folder: Path) -> list[ProbeReading]:
    """Every reading of a run, by attempt and in the order in which they were taken.

    Raises:
        RecordError: a file is no reading.
    """
    readings = []
    for path in sorted((run_folder / FOLDER).glob("*.json")):
        try:
            readings.append(from_json(ProbeReading, path.read_bytes()))
        except RecordError as error:
            raise RecordError(f"{path}: {error}") from error
    order = {"init": 0, "resume": 0, "after": 1, "before": 2}
    return sorted(readings, key=lambda one: (one.attempt_id, one.global_steps, order[one.name.split("_")[0]]))
