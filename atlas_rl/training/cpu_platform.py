"""verl's device layer for a machine without an accelerator.

verl asks a platform object for everything that differs between devices. It ships none for the CPU, and torch.cpu
lacks some functions that verl calls on every device module; this file supplies both.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

_GPU = "GPU"


def _nothing(*_args: object, **_kwargs: object) -> None:
    return None


def _resident_bytes(*_args: object, **_kwargs: object) -> int:
    return int(psutil.Process().memory_info().rss)


def _memory_info(*_args: object, **_kwargs: object) -> tuple[int, int]:
    """Free and total bytes of the machine, the order that torch.cuda.mem_get_info uses."""
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


def _set_rng_state(state: torch.Tensor, *_args: object, **_kwargs: object) -> None:
    torch.set_rng_state(state)


def _get_rng_state(*_args: object, **_kwargs: object) -> torch.Tensor:
    return torch.get_rng_state()


def _device_name(*_args: object, **_kwargs: object) -> str:
    return "cpu"


_MISSING_FROM_TORCH_CPU = {
    "memory_allocated": _resident_bytes,
    "memory_reserved": _resident_bytes,
    "max_memory_allocated": _resident_bytes,
    "max_memory_reserved": _resident_bytes,
    "reset_peak_memory_stats": _nothing,
    "empty_cache": _nothing,
    "ipc_collect": _nothing,
    "mem_get_info": _memory_info,
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
    "get_device_name": _device_name,
    "manual_seed": torch.manual_seed,
    "manual_seed_all": torch.manual_seed,
}


def complete_torch_cpu() -> None:
    """Give torch.cpu the functions that verl calls on its device module and torch.cpu does not have.

    Memory figures are the resident set of this process, since a CPU has no allocator of its own to ask.
    """
    for name, function in _MISSING_FROM_TORCH_CPU.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """The CPU as verl's training device; Ray's logical GPU resource counts its workers."""

    @property
    def device_name(self) -> str:
        """The torch device type."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """The key under which engines may be registered for this hardware."""
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        """torch.cpu, completed."""
        complete_torch_cpu()
        return torch.cpu

    def is_available(self) -> bool:
        """Always: there is a CPU."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Only if asked for by name: detection must never prefer the CPU on a GPU node."""
        return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"

    def current_device(self) -> torch.device:
        """A device, not an index: verl passes it to ``Tensor.to``, where an int would mean cuda."""
        return torch.device("cpu")

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Nothing to choose."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs beside the caller."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch's CPU generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's CPU generator."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The CPU allocator takes none."""

    def empty_cache(self) -> None:
        """The CPU allocator keeps none."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """No capability levels."""
        return None, None

    def communication_backend_name(self) -> str:
        """torch.distributed's backend for CPU tensors."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """The variable Ray sets for the logical GPU resource."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No profiler ranges."""
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        """Declared with ``ray_kwargs.ray_init.num_gpus``."""
        return _GPU

    def ray_noset_envvars(self) -> list[str]:
        """Nothing to keep Ray from setting."""
        return []

    def is_ipc_supported(self) -> bool:
        """No device memory to share: weights travel through shared memory."""
        return False

    def cudart(self) -> Any:
        """No CUDA runtime."""
        return None
