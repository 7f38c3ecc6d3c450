"""Where a run starts: the host, its cards, and the variables that change what libraries do."""

import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from atlas_rl.records.base import Record

VARIABLE_PREFIXES = (
    "CUBLAS_", "CUDA_", "CUDNN_", "FLASH_ATTENTION_", "HF_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MASTER_", "MKL_",
    "NCCL_", "NVIDIA_", "OMP_", "PYTHONHASHSEED", "PYTHONPATH", "PYTORCH_", "RAY_", "SLURM_JOB_", "SLURM_NNODES",
    "TOKENIZERS_", "TORCH", "TRANSFER_QUEUE_", "TRANSFORMERS_", "TRITON_", "VERL_", "VLLM_", "WANDB_", "XGRAMMAR_",
)  # fmt: skip
"""Beginnings of the names of variables that a manifest holds, beside those that the run itself sets."""

HIDDEN = "(not recorded)"
"""Stands for the value of a variable whose name says that it is a secret."""

_SECRET_PARTS = frozenset({"KEY", "KEYS", "PASSWORD", "SECRET", "TOKEN"})
_ENVIRONMENTS = frozenset({"env", "env_vars"})
"""Keys of a configuration that hold variables."""
_CARD_FIELDS = ("index", "name", "memory.total", "driver_version")
_SMI_SECONDS = 30.0
_MIB = 1 << 20


class Card(Record):
    """One accelerator of the host."""

    index: int = Field(ge=0)
    """As nvidia-smi counts; CUDA_VISIBLE_DEVICES says which of them the run sees."""
    name: str
    memory_mib: int = Field(ge=0)
    driver: str


class Machine(Record):
    """The host that the driver of a run started on."""

    hostname: str
    cpu: str
    """Architecture."""
    num_cpus: int = Field(ge=1)
    num_usable_cpus: int = Field(ge=1)
    """Those that the process may run on."""
    memory_mib: int = Field(ge=0)
    """Physical memory of the host."""
    cards: tuple[Card, ...] | None
    """Empty without nvidia-smi; None if it is there and does not answer."""


def this_machine() -> Machine:
    """The host of this process."""
    return Machine(
        hostname=socket.gethostname(),
        cpu=platform.machine(),
        num_cpus=os.cpu_count() or 1,
        num_usable_cpus=len(os.sched_getaffinity(0)),
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB,
        cards=cards(),
    )


def cards() -> tuple[Card, ...] | None:
    """What nvidia-smi lists; torch would take seconds to import and could not be forked afterwards."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, f"--query-gpu={','.join(_CARD_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
        return tuple(_card(line) for line in done.stdout.splitlines() if line.strip())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _card(line: str) -> Card:
    index, *name, memory, driver = (part.strip() for part in line.split(","))
    return Card(index=int(index), name=", ".join(name), memory_mib=int(memory), driver=driver)


def recorded_environment(environment: Mapping[str, str], names: Collection[str] = ()) -> dict[str, str]:
    """Variables that change what the libraries of a run do, by name, sorted; secrets without their values.

    Args:
        environment: All variables.
        names: Variables to hold whatever they are called.
    """
    kept = sorted(name for name in environment if name in names or name.startswith(VARIABLE_PREFIXES))
    return {name: HIDDEN if is_secret(name) else environment[name] for name in kept}


def is_secret(name: str) -> bool:
    """Whether the name of a variable says that its value is nobody's business."""
    return bool(_SECRET_PARTS.intersection(name.upper().split("_")))


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose mappings of variables (``env``, ``env_vars``) hide the values of secrets."""
    return {key: _hidden(value, is_environment=key in _ENVIRONMENTS) for key, value in config.items()}


def _hidden(value: Any, *, is_environment: bool) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {
        key: HIDDEN
        if is_environment and is_secret(key) and not isinstance(one, Mapping)
        else _hidden(one, is_environment=key in _ENVIRONMENTS)
        for key, one in value.items()
    }


def command_without_secrets(words: Collection[str]) -> tuple[str, ...]:
    """A command line whose overrides of variables hide the values of secrets."""
    shown = []
    for word in words:
        key, equals, _ = word.partition("=")
        path = key.lstrip("+~").split(".")
        is_variable = len(path) > 1 and path[-2] in _ENVIRONMENTS
        shown.append(f"{key}={HIDDEN}" if equals and is_variable and is_secret(path[-1]) else word)
    return tuple(shown)


def process_start(pid: int) -> float | None:
    """Seconds since the epoch at which a process started, to a hundredth; None where the kernel does not tell."""
    try:
        since_boot = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    return int(boot.split()[1]) + since_boot / os.sysconf("SC_CLK_TCK")
