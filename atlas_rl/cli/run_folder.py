"""What the start of a run writes down, and which attempt it is."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from atlas_rl.checkpoint.layout import committed_steps
from atlas_rl.cli.preflight import Prepared
from atlas_rl.errors import ConfigError
from atlas_rl.reporting.manifest import (
    DataFile,
    Manifest,
    PotentialBinding,
    PotentialPart,
    build_manifest,
    next_attempt,
    open_run,
)
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.potential_sources import PotentialSources
from atlas_rl.training.config import AtlasConfig

_NOT_TRAINING = (
    "atlas.probe",
    "atlas.run.attempt_id",
    "atlas.run.delivery_timeout_seconds",
    "atlas.run.logs_dir",
    "atlas.run.resume",
    "ray_kwargs",
    "trainer.logger",
)
"""Keys that a resume may change: they do not change what is trained."""


class RunFolder:
    """The folder of one run, looked into but not entered until ``enter``."""

    def __init__(self, config: Any, atlas: AtlasConfig, prepared: Prepared) -> None:
        """Number the attempt and pass the number on in ``config`` and ``atlas``.

        Raises:
            ConfigError: the folder is that of another configuration, or cannot be resumed.
        """
        atlas = replace(atlas, potentials=prepared.potentials)
        config.atlas.reward = atlas.reward.to_mapping()
        config.atlas.potentials = atlas.potentials.to_mapping()
        self._manifest = _manifest(config, atlas, prepared)
        attempt_id = next_attempt(atlas.run.folder, self._manifest, resume=atlas.run.resume, ignored_keys=_NOT_TRAINING)
        self.atlas = replace(atlas, run=replace(atlas.run, attempt_id=attempt_id))
        config.atlas.run.attempt_id = attempt_id
        self.checkpoints = Path(config.trainer.default_local_dir)

    @property
    def starts_over(self) -> bool:
        """True for a resume without a checkpoint to go on from."""
        return self.atlas.run.resume and not committed_steps(self.checkpoints)

    @property
    def log(self) -> Path:
        """Where the attempt's raw output goes."""
        return Path(self.atlas.run.logs_dir) / f"{self.atlas.run.id}.attempt{self.atlas.run.attempt_id}.log"

    def enter(self) -> None:
        """Write the manifest.

        Raises:
            ConfigError: another process has entered the folder since.
        """
        run = self.atlas.run
        attempt_id = open_run(run.folder, self._manifest, resume=run.resume, ignored_keys=_NOT_TRAINING)
        if attempt_id != run.attempt_id:
            raise ConfigError(
                f"{run.folder}: attempt {run.attempt_id} was taken by another process, this would be {attempt_id}; "
                "start again once that one has ended"
            )


def _manifest(config: Any, atlas: AtlasConfig, prepared: Prepared) -> Manifest:
    settled = OmegaConf.to_container(config, resolve=True)
    assert isinstance(settled, dict)
    return build_manifest(
        atlas.run.id,
        {str(key): value for key, value in settled.items()},
        potential=_binding(atlas.reward, atlas.potentials),
        grammar_hashes=prepared.grammar_hashes,
        protocol_token_ids=prepared.protocol_token_ids,
        data_files={path: DataFile(sha256=digest, num_rows=rows) for path, (digest, rows) in prepared.files.items()},
        model_fingerprints=prepared.model_fingerprints,
    )


def _binding(reward: RewardConfig, sources: PotentialSources) -> PotentialBinding:
    """The built-in potentials have no data: their names and weights are all that binds them."""
    name = " + ".join(f"{weight} * {part}" for part, weight in reward.potentials) or "zero"
    known = dict(sources.parts)
    parts = tuple(
        PotentialPart(
            name=part,
            weight=str(weight),
            kind=str(known[part].kind) if part in known else part,
            sha256=known[part].sha256 if part in known else None,
        )
        for part, weight in reward.potentials
    )
    data = "".join(f"\n{part.name} {part.sha256}" for part in parts if part.sha256)
    return PotentialBinding(name=name, sha256=hashlib.sha256((name + data).encode()).hexdigest(), parts=parts)
