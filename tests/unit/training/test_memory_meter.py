"""The meter of a worker process: peaks of a stage, not of the time before it, and what the models did in it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atlas_rl.training.memory_meter import MemoryMeter, is_out_of_memory

MIB = 1 << 20


class Engine:
    """What the meter touches of verl's engine."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.seen: list[bool] = []

    def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> str:
        self.seen.append(forward_only)
        return "output"

    def forward_backward_batch(self, lengths: list[int], *, forward_only: bool) -> Any:
        if self.error is not None:
            raise self.error
        rows = torch.nested.as_nested_tensor([torch.zeros(length) for length in lengths], layout=torch.jagged)
        return self.forward_step({"input_ids": rows}, loss_function=None, forward_only=forward_only)

    def optimizer_step(self) -> float:
        return 1.5

    def to(self, device: str) -> None: ...


def test_micro_batches_updates_and_the_longest_row_of_a_stage_are_counted() -> None:
    meter, engine = MemoryMeter(), Engine()
    meter.watch(engine, "actor")
    meter.start()
    assert engine.forward_backward_batch([3, 9], forward_only=True) == "output"
    engine.forward_backward_batch([4, 4, 4], forward_only=False)
    assert engine.optimizer_step() == 1.5
    [passes] = meter.stop(0).passes
    assert engine.seen == [True, False]
    assert (passes.forward, passes.training, passes.updates) == (1, 1, 1)
    assert (passes.longest_row, passes.most_tokens) == (9, 12)


def test_a_new_stage_counts_from_nothing() -> None:
    meter, engine = MemoryMeter(), Engine()
    meter.watch(engine, "critic")
    engine.forward_backward_batch([3], forward_only=True)
    meter.start()
    assert meter.stop(0).passes[0].forward == 0


def test_an_engine_is_watched_once() -> None:
    meter, engine = MemoryMeter(), Engine()
    meter.watch(engine, "critic")
    meter.watch(engine, "critic")
    meter.start()
    engine.optimizer_step()
    assert meter.stop(0).passes[0].updates == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a card the device is the card")
def test_memory_that_was_freed_within_a_stage_is_in_its_peak_and_in_no_later_one() -> None:
    meter = MemoryMeter()
    meter.start()
    block = bytearray(192 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    del block
    first = meter.stop(3)
    meter.start()
    second = meter.stop(3)
    assert first.rank == 3
    assert first.device == "cpu"
    assert first.allocated_peak_bytes is None
    assert first.held_peak_bytes == first.host_peak_bytes >= first.host_bytes + 150 * MIB
    assert second.host_peak_bytes < first.host_peak_bytes - 100 * MIB
    assert first.margin_bytes <= first.device_free_bytes - 100 * MIB


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has"),
        MemoryError("no"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_running_out_is_remembered_and_still_raised(error: Exception) -> None:
    meter, engine = MemoryMeter(), Engine(error)
    meter.watch(engine, "actor")
    meter.start()
    with pytest.raises(type(error)):
        engine.forward_backward_batch([1], forward_only=False)
    assert meter.stop(0).out_of_memory == " ".join(str(error).split())


def test_another_error_is_no_lack_of_memory() -> None:
    meter, engine = MemoryMeter(), Engine(RuntimeError("shapes differ"))
    meter.watch(engine, "actor")
    meter.start()
    with pytest.raises(RuntimeError, match="shapes differ"):
        engine.forward_backward_batch([1], forward_only=False)
    assert meter.stop(0).out_of_memory is None
    assert not is_out_of_memory(ValueError("out of memory"))


def test_the_facts_of_a_model_tell_base_and_adapter_apart() -> None:
    from atlas_rl.training.memory_meter import model_facts

    module = torch.nn.Sequential(torch.nn.Linear(4, 4, dtype=torch.bfloat16), torch.nn.Linear(4, 2))
    module[0].requires_grad_(False)
    config = SimpleNamespace(hf_config=SimpleNamespace(model_type="qwen3"), lora_rank=8)
    facts = model_facts(SimpleNamespace(module=module, model_config=config))
    assert (facts.parameters, facts.trainable_parameters, facts.dtype) == (30, 10, "bfloat16")
