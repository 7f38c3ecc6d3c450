"""The main job: ``python -m atlas_rl.cli.train experiment=NAME key=value ...``.

Exit codes: 0 trained, 1 refused or failed, 2 a command line that cannot be read.
"""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atlas_rl.cli.composition import compose
from atlas_rl.errors import AtlasError, TrainingError, UsageError
from atlas_rl.training.cpu_weights import WHOLE_WEIGHTS


def set_environment(values: dict[str, str]) -> None:
    """Set what verl, vLLM and Ray read when they are imported; what the shell has set wins."""
    os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "atlas_rl.training.plugin")
    for name in ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for name, value in values.items():
        os.environ.setdefault(name, value)


@contextmanager
def own_environment() -> Iterator[None]:
    """Let a run set variables for itself alone: a sweep has several runs."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def delivers_whole_weights(config: Any) -> bool:
    """Whether the rollout gets whole weights rather than an adapter."""
    model = config.actor_rollout_ref.model
    return bool(model.lora_rank <= 0 or model.lora.get("merge", False))


def run(config: Any) -> None:
    """Check the configuration and all that it names, open the run and train."""
    # What verl and its libraries read from the environment is set before any of them is imported.
    from atlas_rl.training.config import atlas_config

    atlas = atlas_config(config)
    set_environment(atlas.env)
    if delivers_whole_weights(config):
        os.environ.setdefault(WHOLE_WEIGHTS, "1")
    if "wandb" in config.trainer.logger:
        # verl names no run to go on with; by these a resumed run continues its own curves.
        os.environ.setdefault("WANDB_RUN_ID", atlas.run.id)
        os.environ.setdefault("WANDB_RESUME", "allow")
    if atlas.run.warm_workers:
        from atlas_rl.training.warm_python import prepare_ray_for_forks

        prepare_ray_for_forks()
    from atlas_rl.cli.preflight import preflight
    from atlas_rl.cli.run_folder import RunFolder
    from atlas_rl.cli.run_log import raw_output_to

    prepared = preflight(config, atlas)
    folder = RunFolder(config, atlas, prepared)
    with raw_output_to(folder.log) as terminal:
        from atlas_rl.training.console import RunConsole

        console = RunConsole(terminal)
        console.line(
            f"run {atlas.run.id}, attempt {folder.atlas.run.attempt_id}: {prepared.num_train_rows} training and "
            f"{prepared.num_val_rows} validation rows, prompts up to {prepared.longest_prompt} tokens; log {folder.log}"
        )
        if folder.starts_over:
            console.line(f"no checkpoint in {folder.checkpoints}: the run starts again from step 0")
        from atlas_rl.training.verl_check import refuse_what_verl_refuses

        refuse_what_verl_refuses(config)
        folder.enter()
        from atlas_rl.training.task_runner import train

        with one_line_errors(folder.log):
            train(config, folder.atlas, console)


@contextmanager
def one_line_errors(log: Path) -> Iterator[None]:
    """Turn whatever ends a run into one line that names the log, where the traceback goes.

    Raises:
        AtlasError: as raised on purpose, or a TrainingError for anything else.
    """
    try:
        yield
    except AtlasError:
        traceback.print_exc()
        raise
    except KeyboardInterrupt:
        raise TrainingError(f"interrupted; what was stored stays, raw output is in {log}") from None
    except Exception as error:
        traceback.print_exc()
        said = next((line for line in str(error).splitlines()[::-1] if line.strip()), "no message")
        raise TrainingError(f"{type(error).__name__}: {said.strip()}; its traceback is in {log}") from error


def main() -> None:
    """Compose the configuration and run; an error that we raise on purpose is one line, not a traceback."""
    try:
        for config in compose(sys.argv[1:]):
            with own_environment():
                run(config)
    except AtlasError as error:
        print(f"{type(error).__name__}: {' '.join(str(error).splitlines())}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
