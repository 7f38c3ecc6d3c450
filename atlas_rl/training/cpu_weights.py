"""Keeps the weights of vLLM's CPU engine such that new ones can be loaded into them.

After loading, that engine packs each layer for oneDNN and throws the plain weight away, so that a later delivery of
whole weights finds nothing to write to. An adapter goes beside the packed weights and is none the worse for it.
Installed by the entry point group ``vllm.general_plugins``, which vLLM loads in every process of its own.
"""

import os

WHOLE_WEIGHTS = "ATLAS_RL_WHOLE_WEIGHTS"
"""Environment variable; "1" where the actor delivers whole weights (merged, or without an adapter)."""


def keep_plain_weights() -> None:
    """Leave oneDNN out where whole weights will be delivered to a CPU; calling it again changes nothing."""
    if os.environ.get(WHOLE_WEIGHTS) != "1" or os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        return
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False
