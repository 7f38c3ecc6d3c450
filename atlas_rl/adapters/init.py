"""The adapters that training starts from: one for the actor, one for the critic with its value head."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from atlas_rl.adapters.base import adapter_shapes, empty_model
from atlas_rl.adapters.build import adapter_values, add_adapter
from atlas_rl.adapters.out_folder import new_folder
from atlas_rl.adapters.settings import AdapterKind, AdapterSettings
from atlas_rl.adapters.writing import AdapterFacts, write_adapter

REPORT_FILE = "init_report.json"


def init_adapters(
    model_dir: Path,
    out_dir: Path,
    rank: int,
    alpha: int,
    targets: Sequence[str],
    seed: int,
    value_head_std: float = 0.0,
    *,
    base_fingerprint: str,
) -> dict[AdapterKind, AdapterFacts]:
    """Write OUT/actor, OUT/critic and OUT/init_report.json.

    The values are those that the trainer draws from the same seed, whatever the dtype of the base. Of the base only
    config.json is read; memory goes to one adapter at a time.

    Args:
        model_dir: A local Hugging Face folder.
        out_dir: A new folder.
        rank: Rows of A and columns of B.
        alpha: The change of a weight is alpha / rank * B @ A.
        targets: Last parts of the names of linear layers.
        seed: Of every A and of the value head.
        value_head_std: Standard deviation of the value head's weights; 0 starts every value at exactly 0.
        base_fingerprint: sha256 (hex) of the base.

    Raises:
        ConfigError: ``out_dir`` is not empty, a setting is wrong, or a target is not in the model.
    """
    kinds = {kind: AdapterSettings(kind=kind, rank=rank, alpha=alpha, targets=tuple(targets)) for kind in AdapterKind}
    for kind, settings in kinds.items():
        adapter_shapes(empty_model(model_dir, kind), settings, f"the {kind}'s base")  # refused before anything is drawn
    facts = {}
    with new_folder(out_dir) as folder:
        for kind, settings in kinds.items():
            model = add_adapter(
                empty_model(model_dir, kind),
                settings,
                seed=seed,
                value_head_std=value_head_std,
                device=torch.device("cpu"),
            )
            (folder / kind).mkdir()
            facts[kind] = write_adapter(
                folder / kind, settings, adapter_values(model), base=model_dir, base_fingerprint=base_fingerprint
            )
        report = {
            "version": 1,
            "base": {"path": str(model_dir), "fingerprint": base_fingerprint},
            "seed": seed,
            "value_head_std": value_head_std,
            "adapters": {kind: facts[kind].as_json() for kind in kinds},
        }
        (folder / REPORT_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return facts
