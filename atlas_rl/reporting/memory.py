"""memory_check.json: what each stage of a run needed of each card, and how much room was left."""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from atlas_rl.errors import RecordError
from atlas_rl.records.base import Record
from atlas_rl.reporting.manifest import write_atomically

MEMORY_FILE = "memory_check.json"
GIB = 1 << 30


class Stage(StrEnum):
    """What was going on."""

    MODELS = "models"
    """Actor and critic are built, the rollout engine sleeps; the peaks are those of everything up to here."""
    ROWS = "rows"
    """The synthetic batch on its way into the TransferQueue and through the balancing of ranks."""
    OLD_LOG_PROB = "old_log_prob"
    REF_LOG_PROB = "ref_log_prob"
    VALUES = "values"
    ADVANTAGE = "advantage"
    UPDATE_CRITIC = "update_critic"
    UPDATE_ACTOR = "update_actor"
    SAVE = "save"
    WEIGHTS = "weights"
    """The rollout engine wakes up and takes the weights."""
    PROBE = "probe"
    LONG_CONTEXTS = "long_contexts"
    """Generations from prompts that leave hardly anything of the engine's context."""
    REAL_STEP = "real_step"
    """One step of the normal loop, from sampling to the weight update."""


class Passes(Record):
    """The micro-batches of one model on one rank within a stage."""

    model: Literal["actor", "critic", "reference"]
    forward: int = Field(ge=0)
    """Micro-batches of forward passes alone."""
    training: int = Field(ge=0)
    """Micro-batches of forward and backward passes."""
    updates: int = Field(ge=0)
    """Steps of the optimizer."""
    longest_row: int = Field(ge=0)
    """Tokens of prompt and response."""
    most_tokens: int = Field(ge=0)
    """Tokens of the largest micro-batch."""


class RankMemory(Record):
    """One worker process during one stage. On a machine without a card, the device is the machine's own memory."""

    rank: int = Field(ge=0)
    pid: int
    node: str
    """Host name."""
    device: str
    """Name of the card, or cpu."""
    device_total_bytes: int
    device_free_bytes: int
    """At the end of the stage, whichever processes hold the rest."""
    device_least_free_bytes: int
    """The smallest of samples taken during the stage; short dips can fall between two."""
    allocated_peak_bytes: int | None
    """Tensors of this process on the card, exact; None on the CPU."""
    held_bytes: int
    """At the end: the allocator's reserved bytes on a card, resident memory of this process on the CPU."""
    held_peak_bytes: int
    """The most of it within the stage."""
    host_bytes: int
    """Resident memory of this process at the end of the stage."""
    host_peak_bytes: int
    """The most of it within the stage."""
    host_peak_source: Literal["VmHWM", "sampled"]
    """The kernel's own high-water mark, reset at the stage's start, or samples where it cannot be reset."""
    host_total_bytes: int
    host_least_available_bytes: int
    """The smallest of samples of what the machine could still give out."""
    passes: tuple[Passes, ...] = ()
    out_of_memory: str | None = None
    """The allocator's own words, if this rank ran out."""

    @property
    def margin_bytes(self) -> int:
        """Room that was left at the worst moment: what was sampled, or what the exact peak of this process implies."""
        at_peak = self.device_free_bytes + self.held_bytes - self.held_peak_bytes
        return min(self.device_least_free_bytes, at_peak)


class StageMemory(Record):
    """One stage on every rank."""

    stage: Stage
    step: int | None
    """Step of the run; None outside of steps."""
    seconds: float = Field(ge=0)
    """Wall time as the driver sees it."""
    is_engine_awake: bool
    """At the end of the stage: then ``device_total_bytes - device_free_bytes`` is the memory after the wake-up."""
    ranks: tuple[RankMemory, ...]

    @property
    def name(self) -> str:
        """The stage with its step."""
        return str(self.stage) if self.step is None else f"{self.stage}/{self.step}"

    @property
    def margin_bytes(self) -> int | None:
        """Least over ranks; None: no rank answered."""
        return min((rank.margin_bytes for rank in self.ranks), default=None)


class ModelFacts(Record):
    """One model as it was built."""

    model_type: str
    """As config.json names the architecture."""
    parameters: int
    """Of the whole model, over all ranks."""
    trainable_parameters: int
    dtype: str
    """Of the frozen base; of everything without an adapter."""
    lora_rank: int
    """0: no adapter, everything trains."""


class MemoryReport(Record):
    """The whole check, or as much of it as there was before it stopped."""

    report_version: Literal[1] = 1
    run_id: str
    written_at: str
    """UTC, ISO 8601."""
    world_size: int = Field(ge=1)
    models: dict[str, ModelFacts]
    """By actor and critic."""
    budgets: dict[str, int | float | bool | None]
    """Every key that says how much of a batch, or of the card, is used at a time, with its value."""
    num_steps: int
    """Steps of synthetic rows."""
    num_rows: int
    """Rows of each of them, over all ranks."""
    prompt_tokens: int
    """Of every synthetic row."""
    response_tokens: int
    """Of every synthetic row."""
    longest_row: int
    """Tokens of the longest row that a model saw."""
    expected: tuple[str, ...]
    """Names of the stages that a whole check has, in order."""
    stages: tuple[StageMemory, ...]
    peak_bytes: int
    """The most that one process held of its device."""
    margin_bytes: int | None
    """The least room on any device in any stage; None: no stage was measured."""
    host_margin_bytes: int | None
    """The least memory that a machine could still give out."""
    failure: str | None
    """Why the check stopped early."""

    @model_validator(mode="after")
    def _agrees_with_its_stages(self) -> Self:
        figures = _figures(self.stages)
        stored = (self.peak_bytes, self.margin_bytes, self.host_margin_bytes, self.longest_row)
        if stored != figures:
            raise ValueError(f"peak, margin, host margin and longest row are {stored}, but the stages say {figures}")
        return self

    @property
    def missing(self) -> tuple[str, ...]:
        """Expected stages that were not measured to their end on every rank."""
        seen = {
            stage.name
            for stage in self.stages
            if len(stage.ranks) == self.world_size and all(rank.out_of_memory is None for rank in stage.ranks)
        }
        return tuple(name for name in self.expected if name not in seen)

    @property
    def idle_updates(self) -> tuple[str, ...]:
        """Update stages in which a rank made no optimizer step."""
        wanted = {Stage.UPDATE_ACTOR: "actor", Stage.UPDATE_CRITIC: "critic"}
        return tuple(
            stage.name
            for stage in self.stages
            if stage.stage in wanted
            for rank in stage.ranks
            if not any(one.model == wanted[stage.stage] and one.updates for one in rank.passes)
        )

    def faults(self, min_margin_gib: float) -> list[str]:
        """What keeps the check from being passed, one phrase each.

        Args:
            min_margin_gib: The least room that must be left on every device.
        """
        found = [] if self.failure is None else [f"stopped: {self.failure}"]
        if self.missing:
            found.append(f"not measured on every rank: {', '.join(self.missing)}")
        if self.idle_updates:
            found.append(f"no optimizer step was made in {', '.join(self.idle_updates)}")
        whole_row = self.prompt_tokens + self.response_tokens
        if not self.missing and self.longest_row < whole_row:
            found.append(f"the longest row had {self.longest_row} tokens, not {whole_row}")
        if self.margin_bytes is not None and self.margin_bytes < min_margin_gib * GIB:
            found.append(
                f"the margin is {self.margin_bytes / GIB:.2f} GiB, below {min_margin_gib:g}; lower a token budget"
            )
        return found

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return sum(stage.seconds for stage in self.stages)


def _figures(stages: Iterable[StageMemory]) -> tuple[int, int | None, int | None, int]:
    """Peak, margin, host margin and longest row of some stages."""
    ranks = [rank for stage in stages for rank in stage.ranks]
    return (
        max((rank.held_peak_bytes for rank in ranks), default=0),
        min((rank.margin_bytes for rank in ranks), default=None),
        min((rank.host_least_available_bytes for rank in ranks), default=None),
        max((passes.longest_row for rank in ranks for passes in rank.passes), default=0),
    )


class ReportHead(Record):
    """What is known of a check before its first stage; ``MemoryReport`` says what each is."""

    run_id: str
    world_size: int
    models: dict[str, ModelFacts]
    budgets: dict[str, int | float | bool | None]
    num_steps: int
    num_rows: int
    prompt_tokens: int
    response_tokens: int
    expected: tuple[str, ...]


def memory_report(head: ReportHead, stages: Iterable[StageMemory], failure: str | None = None) -> MemoryReport:
    """The report of the stages so far."""
    measured = tuple(stages)
    peak, margin, host_margin, longest = _figures(measured)
    return MemoryReport(
        **head.model_dump(exclude={"models"}),
        models=head.models,
        written_at=datetime.now(UTC).isoformat(timespec="seconds"),
        stages=measured,
        peak_bytes=peak,
        margin_bytes=margin,
        host_margin_bytes=host_margin,
        longest_row=longest,
        failure=failure,
    )


def figures_line(report: MemoryReport) -> str:
    """The figures of a check in one line."""
    margin = "none" if report.margin_bytes is None else f"{report.margin_bytes / GIB:.2f}"
    return (
        f"memory_check: steps={report.num_steps} rows={report.num_rows} longest_row={report.longest_row} "
        f"peak_gib={report.peak_bytes / GIB:.2f} margin_gib={margin} seconds={report.seconds:.1f}"
    )


def write_memory_report(folder: Path, report: MemoryReport) -> None:
    """Replace the run's memory_check.json in one move."""
    write_atomically(folder / MEMORY_FILE, report.model_dump_json(indent=1).encode())


def read_memory_report(folder: Path) -> MemoryReport:
    """The memory_check.json of a run.

    Raises:
        RecordError: it is not there, or not what this version writes.
    """
    path = folder / MEMORY_FILE
    try:
        return MemoryReport.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RecordError(
            f"{path} cannot be read ({error.strerror}); run the memory check of this run, or name another folder"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise RecordError(
            f"{path}: {where}: {first['msg']}; the file is damaged or of another version: run the check again"
        ) from error
