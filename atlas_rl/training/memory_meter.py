"""What one worker process needs of its card and of its machine, stage by stage."""

import math
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from atlas_rl.reporting.memory import ModelFacts, Passes, RankMemory

SAMPLE_SECONDS = 0.05
"""Between two looks at what is free: the other processes on a card, the rollout engine's, have no peak to ask for."""

Model = Literal["actor", "critic", "reference"]


class _Count:
    """What one model did since the stage began."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.reset()

    def reset(self) -> None:
        self.forward = self.training = self.updates = self.longest_row = self.most_tokens = 0

    def passes(self) -> Passes:
        return Passes(
            model=self.model,
            forward=self.forward,
            training=self.training,
            updates=self.updates,
            longest_row=self.longest_row,
            most_tokens=self.most_tokens,
        )


class MemoryMeter:
    """Peaks of this process between ``start`` and ``stop``; counts the micro-batches of the engines that it watches."""

    def __init__(self) -> None:
        self._counts: dict[Model, _Count] = {}
        self._out_of_memory: str | None = None
        self._halt = threading.Event()
        self._sampler: threading.Thread | None = None
        self._lock = threading.Lock()
        # The sampler's thread would look at card 0.
        self._card = torch.cuda.current_device() if torch.cuda.is_available() else None
        # Until the first ``start``, peaks are those of the process's whole life.
        self._least_free, _ = self._free_and_total()
        self._least_available = psutil.virtual_memory().available
        self._most_resident = 0
        self._has_mark = True

    def watch(self, engine: Any, model: Model) -> None:
        """Count what an engine of verl does, and remember if it runs out of memory; once for each model."""
        if model in self._counts:
            return
        count = self._counts[model] = _Count(model)
        forward_step = engine.forward_step

        def counted(micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
            lengths = micro_batch["input_ids"].offsets().diff()
            count.longest_row = max(count.longest_row, int(lengths.max()))
            count.most_tokens = max(count.most_tokens, int(lengths.sum()))
            if forward_only:
                count.forward += 1
            else:
                count.training += 1
            return forward_step(micro_batch, loss_function=loss_function, forward_only=forward_only)

        engine.forward_step = counted
        for name in ("forward_backward_batch", "optimizer_step", "to"):
            setattr(engine, name, self._noticing(getattr(engine, name)))
        optimizer_step = engine.optimizer_step

        def updated(*arguments: Any, **options: Any) -> Any:
            norm = optimizer_step(*arguments, **options)
            count.updates += math.isfinite(float(norm))  # otherwise the step was left out
            return norm

        engine.optimizer_step = updated

    def start(self) -> None:
        """Begin a stage: peaks are those from here on."""
        self._end_sampling()
        for count in self._counts.values():
            count.reset()
        self._out_of_memory = None
        if self._card is not None:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self._has_mark = _reset_high_water_mark()
        self._least_free, _ = self._free_and_total()
        self._least_available = psutil.virtual_memory().available
        self._most_resident = psutil.Process().memory_info().rss
        self._halt.clear()
        self._sampler = threading.Thread(target=self._sample, daemon=True, name="memory meter")
        self._sampler.start()

    def stop(self, rank: int) -> RankMemory:
        """End the stage and say what it needed.

        Args:
            rank: Of this process.
        """
        is_card = self._card is not None
        if is_card and self._out_of_memory is None:
            torch.cuda.synchronize()
        self._end_sampling()
        self._look()
        free, total = self._free_and_total()
        resident = psutil.Process().memory_info().rss
        mark = _high_water_mark() if self._has_mark else None
        host_peak = max(self._most_resident, resident, mark or 0)
        return RankMemory(
            rank=rank,
            pid=os.getpid(),
            node=socket.gethostname(),
            device=torch.cuda.get_device_name() if is_card else "cpu",
            device_total_bytes=total,
            device_free_bytes=free,
            device_least_free_bytes=min(self._least_free, free),
            allocated_peak_bytes=torch.cuda.max_memory_allocated() if is_card else None,
            held_bytes=torch.cuda.memory_reserved() if is_card else resident,
            held_peak_bytes=torch.cuda.max_memory_reserved() if is_card else host_peak,
            host_bytes=resident,
            host_peak_bytes=host_peak,
            host_peak_source="sampled" if mark is None else "VmHWM",
            host_total_bytes=psutil.virtual_memory().total,
            host_least_available_bytes=self._least_available,
            passes=tuple(count.passes() for count in self._counts.values()),
            out_of_memory=self._out_of_memory,
        )

    def _noticing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noticing(*arguments: Any, **options: Any) -> Any:
            try:
                return call(*arguments, **options)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if is_out_of_memory(error):
                    self._out_of_memory = " ".join(str(error).split())
                raise

        return noticing

    def _free_and_total(self) -> tuple[int, int]:
        """Bytes of the card, or of the machine without one."""
        if self._card is not None:
            free, total = torch.cuda.mem_get_info(self._card)
            return free, total
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)

    def _sample(self) -> None:
        while not self._halt.wait(SAMPLE_SECONDS):
            self._look()

    def _look(self) -> None:
        free, _ = self._free_and_total()
        available, resident = psutil.virtual_memory().available, psutil.Process().memory_info().rss
        with self._lock:
            self._least_free = min(self._least_free, free)
            self._least_available = min(self._least_available, available)
            self._most_resident = max(self._most_resident, resident)

    def _end_sampling(self) -> None:
        self._halt.set()
        if self._sampler is not None:
            self._sampler.join()
            self._sampler = None


_meter: MemoryMeter | None = None


def process_meter() -> MemoryMeter:
    """The one of this process: actor and critic of a rank live in one, and share its card."""
    global _meter
    if _meter is None:
        _meter = MemoryMeter()
    return _meter


def model_facts(engine: Any) -> ModelFacts:
    """What kind of model an engine of verl has built.

    Args:
        engine: With ``module`` and ``model_config``.
    """
    parameters = list(engine.module.parameters())
    base = next((one for one in parameters if not one.requires_grad), parameters[0])
    return ModelFacts(
        model_type=engine.model_config.hf_config.model_type,
        parameters=sum(one.numel() for one in parameters),
        trainable_parameters=sum(one.numel() for one in parameters if one.requires_grad),
        dtype=str(base.dtype).removeprefix("torch."),
        lora_rank=engine.model_config.lora_rank,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator refused, on a card or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _reset_high_water_mark() -> bool:
    """False where the kernel does not allow it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return True
    return False


def _high_water_mark() -> int | None:
    """Bytes: the most resident memory of this process since the mark was reset."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
