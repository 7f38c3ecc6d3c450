"""Stage by stage: what every rank needed, written after each, and what to lower when a rank ran out."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from omegaconf import OmegaConf
from ray.exceptions import RayActorError, RayError

from atlas_rl.errors import TrainingError
from atlas_rl.reporting.memory import (
    GIB,
    ModelFacts,
    RankMemory,
    ReportHead,
    Stage,
    StageMemory,
    memory_report,
    write_memory_report,
)

ANSWER_SECONDS = 60.0
"""How long a rank may take to say what it needed; after a failure some wait in a collective call for ever."""

_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"

BUDGETS = (
    "data.train_batch_size",
    f"{_ROLLOUT}.n",
    f"{_ACTOR}.ppo_mini_batch_size",
    f"{_ACTOR}.use_dynamic_bsz",
    f"{_ACTOR}.ppo_max_token_len_per_gpu",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{_REF}.log_prob_max_token_len_per_gpu",
    f"{_REF}.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_mini_batch_size",
    "critic.use_dynamic_bsz",
    "critic.ppo_max_token_len_per_gpu",
    "critic.ppo_micro_batch_size_per_gpu",
    "critic.forward_max_token_len_per_gpu",
    "critic.forward_micro_batch_size_per_gpu",
    "atlas.policy.head_chunk_tokens",
    f"{_ACTOR}.fsdp_config.param_offload",
    f"{_ACTOR}.fsdp_config.optimizer_offload",
    f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
    "critic.fsdp.param_offload",
    "critic.fsdp.optimizer_offload",
    "critic.fsdp.ulysses_sequence_parallel_size",
    f"{_ROLLOUT}.gpu_memory_utilization",
    f"{_ROLLOUT}.max_num_seqs",
    f"{_ROLLOUT}.max_num_batched_tokens",
    f"{_ROLLOUT}.max_model_len",
)
"""Keys that say how much is worked on, or held, at one time."""

_SPLIT_BY: Mapping[Stage, tuple[str, str]] = {
    Stage.OLD_LOG_PROB: (f"{_ACTOR}.use_dynamic_bsz", f"{_ROLLOUT}.log_prob"),
    Stage.REF_LOG_PROB: (f"{_ACTOR}.use_dynamic_bsz", f"{_ROLLOUT}.log_prob"),
    Stage.VALUES: ("critic.use_dynamic_bsz", "critic.forward"),
    Stage.UPDATE_CRITIC: ("critic.use_dynamic_bsz", "critic.ppo"),
    Stage.UPDATE_ACTOR: (f"{_ACTOR}.use_dynamic_bsz", f"{_ACTOR}.ppo"),
}
"""For stages that are split into micro-batches: the key that says how, and the begin of the key that says how large."""

_ENGINE_STAGES = (Stage.WEIGHTS, Stage.PROBE, Stage.LONG_CONTEXTS, Stage.REAL_STEP)


class StageRecorder:
    """Measures stages through the actor's workers, whose processes hold the critic too."""

    def __init__(self, folder: Path, config: Any, console: Any, head: ReportHead) -> None:
        """Measure nothing yet.

        Args:
            folder: The run's.
            config: The run's.
            console: A line is printed for each stage.
            head: What the report says of the run.
        """
        self.stages: list[StageMemory] = []
        self.head = head
        self._folder = folder
        self._config = config
        self._console = console
        self._group: Any = None
        self._is_open = False
        self._open: Stage | None = None

    def begin(self, group: Any, models: dict[str, ModelFacts]) -> None:
        """Know whom to ask, and what they have built."""
        self._group = group
        self.head = self.head.model_copy(update={"models": models})

    @contextmanager
    def measured(
        self, stage: Stage, step: int | None, *, is_engine_awake: bool = False, since: float | None = None
    ) -> Iterator[None]:
        """Measure a block, also one that fails; within another stage's block, that stage is measured alone.

        Args:
            stage: What the block does.
            step: Of the run; None: outside of steps.
            is_engine_awake: Whether the rollout engine is awake when the block ends.
            since: ``time.perf_counter()`` at which the stage began, if that was before there was anyone to ask: peaks
                are then those since the processes began.
        """
        if self._is_open:
            yield
            return
        self._is_open, self._open = True, stage
        if since is None:
            self._group.start_memory_stage()
        started = time.perf_counter() if since is None else since
        try:
            yield
        finally:
            self._is_open = False
            seconds = time.perf_counter() - started
            ranks = self._ask()
            measured = StageMemory(
                stage=stage, step=step, seconds=seconds, is_engine_awake=is_engine_awake, ranks=tuple(ranks)
            )
            self.stages.append(measured)
            self.write(None)
            self._console.line(stage_line(measured))

    def write(self, failure: str | None) -> None:
        """Put what is known so far into memory_check.json."""
        write_memory_report(self._folder, memory_report(self.head, self.stages, failure))

    def _ask(self) -> list[RankMemory]:
        """The ranks that answer."""
        asked = self._group.end_memory_stage()
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_SECONDS)
        found = []
        for answer in answered:
            try:
                found.append(ray.get(answer))
            except RayError:
                continue  # the process is gone, or its card answers no more; the stage shows that a rank is missing
        return sorted(found, key=lambda one: one.rank)

    def explained(self, error: BaseException) -> TrainingError | None:
        """The one line about a failure for lack of memory; None: the failure is of another kind."""
        last = self.stages[-1] if self.stages else None
        out = next((rank for rank in last.ranks if rank.out_of_memory is not None), None) if last else None
        if last is not None and out is not None:
            return TrainingError(
                f"memory check: stage {last.name}, rank {out.rank} ({out.device} of {out.node}) ran out of memory at a "
                f"peak of {out.held_peak_bytes / GIB:.2f} of {out.device_total_bytes / GIB:.2f} GiB; "
                f"{self._remedy(last.stage)}; {self._where}"
            )
        if "out of memory" in str(error).lower():  # an engine's process, or models that were not built yet
            stage = self._open or Stage.MODELS
            what = "the rollout engine or its server" if stage in _ENGINE_STAGES else "a worker"
            return TrainingError(
                f"memory check: stage {stage}: {what} ran out of memory; {self._remedy(stage)}; {self._where}"
            )
        if isinstance(error, RayActorError):
            ranks = [rank for stage in self.stages for rank in stage.ranks]
            least = min((rank.host_least_available_bytes for rank in ranks), default=None)
            left = "" if least is None else f" ({least / GIB:.2f} GiB were left at the least before)"
            return TrainingError(
                f"memory check: stage {self._open or Stage.MODELS}: a worker process died, as the kernel kills one for "
                f"lack of host memory{left}; lower {self._shown('data.train_batch_size')}, or set param_offload=false "
                f"where the card has room; {self._where}"
            )
        return None

    @property
    def _where(self) -> str:
        return f"memory_check.json in {self._folder} has the stages up to it"

    def _remedy(self, stage: Stage) -> str:
        """Which key to lower, with its value."""
        if stage in _SPLIT_BY:
            return self._smaller_batches(*_SPLIT_BY[stage])
        if stage in _ENGINE_STAGES:
            return f"lower {self._shown(f'{_ROLLOUT}.gpu_memory_utilization')}"
        if stage is Stage.MODELS:
            return (
                f"set {_ACTOR}.fsdp_config.param_offload=true and critic.fsdp.param_offload=true, or lower "
                f"{self._shown(f'{_ROLLOUT}.gpu_memory_utilization')}"
            )
        return f"lower {self._shown('data.train_batch_size')}"

    def _smaller_batches(self, is_dynamic: str, prefix: str) -> str:
        if not OmegaConf.select(self._config, is_dynamic):
            return f"lower {self._shown(f'{prefix}_micro_batch_size_per_gpu')}"
        key = f"{prefix}_max_token_len_per_gpu"
        row = self._config.data.max_prompt_length + self._config.data.max_response_length
        if OmegaConf.select(self._config, key) >= 2 * row:
            return f"lower {self._shown(key)}"
        return (
            f"{self._shown(key)} holds one row of {row} tokens already: lower "
            f"{self._shown('data.max_response_length')} or {self._shown('atlas.policy.head_chunk_tokens')}, or set "
            "param_offload=true for the model that rests"
        )

    def _shown(self, key: str) -> str:
        return f"{key}={OmegaConf.select(self._config, key)}"


def stage_line(measured: StageMemory) -> str:
    """What the terminal shows of a stage: the worst rank."""
    if not measured.ranks:
        return f"{measured.name}: {measured.seconds:.1f} s, no rank answered"
    worst = min(measured.ranks, key=lambda rank: rank.margin_bytes)
    return (
        f"{measured.name}: {measured.seconds:.1f} s, rank {worst.rank} peak {worst.held_peak_bytes / GIB:.2f} GiB, "
        f"margin {worst.margin_bytes / GIB:.2f} of {worst.device_total_bytes / GIB:.2f} GiB"
    )
