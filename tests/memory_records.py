"""Builders of what a memory check measures."""

from typing import Any

from atlas_rl.reporting.memory import GIB, ModelFacts, Passes, RankMemory, ReportHead, Stage, StageMemory

MODELS = {
    name: ModelFacts(model_type="qwen3", parameters=100, trainable_parameters=10, dtype="bfloat16", lora_rank=8)
    for name in ("actor", "critic")
}


def rank(number: int = 0, *, free: float = 40.0, held: float = 90.0, peak: float = 100.0, **changes: Any) -> RankMemory:
    """One rank on a card of 140 GiB; sizes in GiB."""
    facts = {
        "rank": number,
        "pid": 100 + number,
        "node": "here",
        "device": "NVIDIA H200",
        "device_total_bytes": 140 * GIB,
        "device_free_bytes": int(free * GIB),
        "device_least_free_bytes": int(free * GIB),
        "allocated_peak_bytes": int((peak - 2) * GIB),
        "held_bytes": int(held * GIB),
        "held_peak_bytes": int(peak * GIB),
        "host_bytes": 5 * GIB,
        "host_peak_bytes": 6 * GIB,
        "host_peak_source": "VmHWM",
        "host_total_bytes": 128 * GIB,
        "host_least_available_bytes": 70 * GIB,
    }
    return RankMemory.model_validate(facts | changes)


def passes(model: str = "actor", *, updates: int = 1, longest_row: int = 1536) -> Passes:
    return Passes.model_validate(
        {
            "model": model,
            "forward": 0,
            "training": 4,
            "updates": updates,
            "longest_row": longest_row,
            "most_tokens": 3072,
        }
    )


def stage(name: Stage, step: int | None = 1, *ranks: RankMemory, awake: bool = False) -> StageMemory:
    return StageMemory(stage=name, step=step, seconds=2.0, is_engine_awake=awake, ranks=ranks or (rank(),))


def head(*expected: str, world_size: int = 1) -> ReportHead:
    return ReportHead(
        run_id="check",
        world_size=world_size,
        models=MODELS,
        budgets={"critic.ppo_max_token_len_per_gpu": 3072},
        num_steps=1,
        num_rows=32,
        prompt_tokens=512,
        response_tokens=1024,
        expected=expected,
    )
