"""Stored runs whose rewards are those that their records earn, for the tests of the replay."""

import hashlib
from pathlib import Path
from typing import Any

from record_builders import trajectory

from atlas_rl.records.json_text import to_json
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.reporting.manifest import PotentialBinding, build_manifest
from atlas_rl.rewards.config import Preset, RewardConfig
from atlas_rl.rewards.placement import place, reward_score
from atlas_rl.rewards.score import score

BOTH = RewardConfig(preset=Preset.BOTH)


def earned(row: Trajectory, reward: RewardConfig = BOTH) -> Trajectory:
    """The row with the reward that it earns."""
    scored = score(row.episode, row.grade, config=reward, subset=row.reward.subset)
    trace = place(scored)
    changes = {"reward": scored.breakdown, "reward_trace": trace, "reward_score": reward_score(trace)}
    return row.model_copy(update=changes)


def rows(num: int = 4, *, correct_all: bool = False, **changes: Any) -> list[Trajectory]:
    """Rows u0, u1, ... of as many explores each, every other one right, or all."""
    return [earned(trajectory(f"u{n}", explores=n, correct=correct_all or n % 2 == 0, **changes)) for n in range(num)]


def stored_run(folder: Path, *stored: Trajectory, reward: RewardConfig = BOTH, config: Any = None) -> Path:
    """A run folder with one shard a step of training."""
    for step in sorted({row.global_steps for row in stored}):
        with TrajectoryWriter(folder / "train" / f"step_{step}", "w") as writer:
            for row in stored:
                if row.global_steps == step:
                    writer.append(row)
    binding = PotentialBinding(name="zero", sha256=hashlib.sha256(b"zero").hexdigest())
    atlas = {"atlas": {"reward": reward.to_mapping(), **(config or {})}}
    manifest = build_manifest("run-a", atlas, potential=binding, grammar_hashes={}, protocol_token_ids={})
    (folder / "run.json").write_bytes(to_json(manifest))
    return folder
