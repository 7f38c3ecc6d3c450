"""Reading a step back: all of it as it was written, or one line that says what is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atlas_rl.checkpoint.engine_state import check_trainable
from atlas_rl.checkpoint.identity import ModelIdentity, RunIdentity, check_model, check_run
from atlas_rl.checkpoint.layout import RUN, rank_folder
from atlas_rl.checkpoint.manifest import Manifest
from atlas_rl.checkpoint.reading import StepFiles
from atlas_rl.checkpoint.state import DATALOADER, OPTIMIZER, PROGRESS, RNG, SCHEDULER, RankState, RunState
from atlas_rl.checkpoint.tensors import TensorSpec
from atlas_rl.errors import ConfigError, TrainingError, blame


@dataclass(frozen=True, kw_only=True)
class LoadedStep:
    """Everything of a step."""

    manifest: Manifest
    run: RunState
    ranks: Mapping[tuple[str, int], RankState]
    """By model and rank."""


def load_step(
    step_folder: Path,
    *,
    expect: RunIdentity,
    trainable: Mapping[tuple[str, int], Mapping[str, TensorSpec]] | None = None,
) -> LoadedStep:
    """All of a step: what the run has once, and every rank of every model.

    Args:
        step_folder: CHECKPOINTS/global_step_N.
        expect: What the run that wants it is.
        trainable: What the modules train, by model and rank; None: whatever was saved.

    Raises:
        TrainingError: a file is missing or damaged.
        ConfigError: it is a step of something else than ``expect`` and ``trainable``.
    """
    run = load_run(step_folder, expect=expect)
    ranks = {
        (model, rank): load_rank(
            step_folder, model, rank, expect=identity, trainable=None if trainable is None else trainable[model, rank]
        )
        for model, identity in expect.models.items()
        for rank in range(identity.world_size)
    }
    return LoadedStep(manifest=StepFiles(step_folder).manifest, run=run, ranks=ranks)


def load_run(step_folder: Path, *, expect: RunIdentity) -> RunState:
    """What a step holds once: for the driver.

    Raises:
        TrainingError: a file is missing or damaged.
        ConfigError: it is a step of another run, or of other models.
    """
    files = StepFiles(step_folder)
    check_run(str(step_folder), files.manifest.identity, expect)
    progress = files.value(f"{RUN}/{PROGRESS}")
    with blame(TrainingError, f"{step_folder / RUN}: not what this program writes"):
        return RunState(**progress, dataloader=files.value(f"{RUN}/{DATALOADER}"), rng=files.value(f"{RUN}/{RNG}"))


def load_rank(
    step_folder: Path,
    model: str,
    rank: int,
    *,
    expect: ModelIdentity,
    trainable: Mapping[str, TensorSpec] | None,
) -> RankState:
    """What a step holds of one rank of one model, on the CPU; only this rank's files are read.

    Args:
        step_folder: CHECKPOINTS/global_step_N.
        model: Its name.
        rank: In [0, expect.world_size).
        expect: What the model is.
        trainable: What the module trains on this rank (``engine_state.trainable_specs``); None: whatever was saved.

    Raises:
        TrainingError: a file is missing or damaged.
        ConfigError: the model was saved otherwise: ranks, base, adapter, names, dtypes or shapes.
    """
    files = StepFiles(step_folder)
    models = files.manifest.identity.models
    if model not in models:
        raise ConfigError(f"{step_folder}: holds the models {sorted(models)}, no {model!r}; configure the same models")
    check_model(str(step_folder), model, models[model], expect)
    if trainable is not None:
        check_trainable(str(files.trainable_path(model, rank)), files.trainable_specs(model, rank), trainable)
    folder = rank_folder(model, rank)
    return RankState(
        trainable=files.trainable(model, rank),
        optimizer=files.value(f"{folder}/{OPTIMIZER}"),
        scheduler=files.value(f"{folder}/{SCHEDULER}"),
        rng=files.value(f"{folder}/{RNG}"),
    )
