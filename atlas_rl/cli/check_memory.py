"""``atlas-rl check memory``: what a memory check measured, and whether it is whole and leaves enough room."""

from pathlib import Path

from atlas_rl.cli.columns import columns
from atlas_rl.reporting.memory import GIB, MemoryReport, StageMemory, read_memory_report


def print_memory(run: Path, *, min_margin_gib: float) -> bool:
    """Print memory_check.json of a run; False if a stage is missing or the room is too little.

    Args:
        run: The run's folder.
        min_margin_gib: The least room that must be left on every device.
    """
    report = read_memory_report(run)
    print("\n".join(memory_lines(report, min_margin_gib)))
    return not report.faults(min_margin_gib)


def memory_lines(report: MemoryReport, min_margin_gib: float) -> list[str]:
    """The lines that the check prints; the last one has its figures."""
    lines = [f"run {report.run_id}: {report.num_rows} rows of {report.prompt_tokens} + {report.response_tokens} tokens"]
    lines += [
        f"{name}: {model.model_type}, {model.parameters:,} parameters in {model.dtype}, "
        f"{model.trainable_parameters:,} of them trained"
        for name, model in report.models.items()
    ]
    head = ("stage", "seconds", "rank", "peak GiB", "tensors GiB", "margin GiB", "host GiB", "micro-batches", "updates")
    lines += columns([head, *(_cells(stage) for stage in report.stages)])
    awake = [stage for stage in report.stages if stage.is_engine_awake and stage.ranks]
    if awake:
        used = [max(rank.device_total_bytes - rank.device_free_bytes for rank in stage.ranks) for stage in awake]
        by_name = ", ".join(f"{stage.name} {_gib(found)}" for stage, found in zip(awake, used, strict=True))
        lines.append(f"device memory in use with the rollout engine awake, GiB: {by_name}")
    faults = report.faults(min_margin_gib)
    lines += [f"fault: {fault}" for fault in faults]
    margin = "none" if report.margin_bytes is None else _gib(report.margin_bytes)
    host = "none" if report.host_margin_bytes is None else _gib(report.host_margin_bytes)
    lines.append(
        f"check: stages={len(report.stages)} longest_row={report.longest_row} peak_gib={_gib(report.peak_bytes)} "
        f"margin_gib={margin} host_margin_gib={host} failures={len(faults)}"
    )
    return lines


def _cells(stage: StageMemory) -> tuple[str, ...]:
    """The rank with the least room."""
    if not stage.ranks:
        return (stage.name, f"{stage.seconds:.1f}", "none", *("",) * 6)
    worst = min(stage.ranks, key=lambda rank: rank.margin_bytes)
    micro_batches = sum(one.forward + one.training for one in worst.passes)
    updates = sum(one.updates for one in worst.passes)
    return (
        stage.name,
        f"{stage.seconds:.1f}",
        str(worst.rank),
        _gib(worst.held_peak_bytes),
        "" if worst.allocated_peak_bytes is None else _gib(worst.allocated_peak_bytes),
        _gib(worst.margin_bytes),
        _gib(worst.host_peak_bytes),
        str(micro_batches or ""),
        str(updates or ""),
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f}"
