"""What a person sees of a run: a bar for the stage at hand and one line a step."""

import sys
import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_STAGES = ("generate", "log-probs", "values", "advantage", "critic", "actor", "weights")
_TIMED = {
    "gen": "gen",
    "old_log_prob": "logp",
    "ref": "ref",
    "values": "values",
    "update_critic": "critic",
    "update_actor": "actor",
    "save_checkpoint": "save",
    "update_weights": "sync",
    "probe": "probe",
    "testing": "val",
}
"""verl's timer names and the short ones of the step line."""

_SHOWN = ("utility", "acc", "explores", "cost", "protocol_violations")
"""What the validation line shows of a benchmark's overall view."""


class RunConsole:
    """Prints progress to one stream; the bars appear only on a terminal."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._started = time.monotonic()

    def line(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False)

    def stage(self, name: str, *, done: int, total: int) -> None:
        """Show how far a stage is: ``done`` of ``total``."""
        if not self._console.is_terminal:
            return
        if self._progress is None:
            columns = (
                TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            )  # fmt: skip
            # Without redirection: rich would send what libraries print to the terminal, past the log.
            self._progress = Progress(
                *columns, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._progress.start()
            self._task = self._progress.add_task(name, total=total)
        assert self._task is not None
        self._progress.update(self._task, description=name, completed=done, total=total)

    def update_stage(self, name: str) -> None:
        """Show which of a step's stages runs."""
        self.stage(name, done=_STAGES.index(name), total=len(_STAGES))

    def end_stage(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress, self._task = None, None

    def step(self, step: int, total: int, metrics: Mapping[str, float], timing: Mapping[str, float]) -> None:
        """Print the line of a training step: seconds a stage, utility, explores, violations."""
        self.end_stage()
        stages = " ".join(f"{short} {timing[name]:.1f}" for name, short in _TIMED.items() if name in timing)
        seconds = timing.get("step", sum(timing.get(name, 0.0) for name in _TIMED))
        self.line(
            f"step {step}/{total} {seconds:.1f} s ({stages}) | utility {metrics['train/utility_mean']:.3f} "
            f"explores {metrics['train/explores_mean']:.2f} violations {metrics['protocol/violations_in_batch']:.0f} "
            f"faults {metrics['train/infrastructure_errors']:.0f}"
        )

    def validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print one line a benchmark: its overall view."""
        self.end_stage()
        for name, count in metrics.items():
            benchmark, _, key = name.partition("/overall/")
            if key == "count":
                view = {key: metrics.get(f"{benchmark}/overall/{key}", float("nan")) for key in _SHOWN}
                shown = " ".join(f"{key} {value:.3f}" for key, value in view.items())
                faults = metrics[f"{benchmark}/overall/infrastructure_errors"]
                self.line(f"validation {step}: {benchmark} {count:.0f} episodes | {shown} | faults {faults:.0f}")

    def seconds(self) -> float:
        """Wall seconds since the console was made."""
        return time.monotonic() - self._started
