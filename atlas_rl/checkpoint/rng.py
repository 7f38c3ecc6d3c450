"""The random states of this process, all four, taken and put back together."""

import random
from typing import Any

import numpy as np
import torch

from atlas_rl.errors import ConfigError


def capture_rng() -> dict[str, Any]:
    """The state of every generator of this process; drawing nothing and changing nothing.

    The card's is that of the current device, and None where the process has not used CUDA.
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss},
        "numpy": {"name": name, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
        "torch_cpu": torch.get_rng_state(),
        "torch_cuda": torch.cuda.get_rng_state() if _uses_a_card() else None,
    }


def restore_rng(state: dict[str, Any]) -> None:
    """Put every generator of this process back to what ``capture_rng`` saw.

    Raises:
        ConfigError: the state has one for a card and this process has no card, or the other way round: the draws would
            not be those of the run.
    """
    on_card = _uses_a_card()
    if on_card != (state["torch_cuda"] is not None):
        has, needs = ("uses a card", "none") if on_card else ("uses no card", "one")
        raise ConfigError(f"RNG state: this process {has}, the saved one used {needs}; resume on the same hardware")
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state((numpy["name"], numpy["keys"], numpy["position"], numpy["has_gauss"], numpy["cached"]))
    torch.set_rng_state(state["torch_cpu"])
    if on_card:
        torch.cuda.set_rng_state(state["torch_cuda"])


def _uses_a_card() -> bool:
    """Asking a process for a card's state would make a context there, in a driver too that needs none."""
    return torch.cuda.is_available() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
