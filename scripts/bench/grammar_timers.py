"""The scheduler of ``atlas_rl.training.engine_grammar`` with clocks that run only for requests named "timed-LABEL-N".

Runs in the engine's process. What was measured is written to the file that ATLAS_BENCH_TIMES names, when the next
request with another label, or none, comes in.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

PREFIX = "timed-"
TIMES_FILE = "ATLAS_BENCH_TIMES"


def scheduler(**arguments: Any) -> Any:
    """For the engine argument ``scheduler_cls``."""
    from atlas_rl.training.engine_grammar import scheduler as remembering

    made = remembering(**arguments)
    clocks = Clocks(made)
    made.add_request = clocks.before(made.add_request)
    return made


class Clocks:
    """Seconds and calls by label and place."""

    def __init__(self, made: Any) -> None:
        self._scheduler = made
        self._label: str | None = None
        self._undo: list[Callable[[], None]] = []
        self._sums: dict[str, dict[str, list[float]]] = {}
        self._events: list[tuple[Any, Any]] = []
        self._last_step = 0.0

    def before(self, add_request: Callable[[Any], None]) -> Callable[[Any], None]:
        """``add_request`` that switches the clocks by the request's name."""

        def added(request: Any) -> None:
            name = request.request_id
            label = name.removeprefix(PREFIX).split("-")[0] if name.startswith(PREFIX) else None
            if label != self._label:
                self._stop()
                self._label = label
                if label is not None:
                    self._start(label)
            add_request(request)

        return added

    def _start(self, label: str) -> None:
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor
        from vllm.v1.executor.uniproc_executor import UniProcExecutor
        from vllm.v1.worker import gpu_model_runner
        from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

        self._sums[label] = defaultdict(lambda: [0.0, 0])
        self._last_step = 0.0
        self._clock(self._scheduler, "schedule", "schedule")
        self._clock(self._scheduler, "update_from_output", "update")
        self._clock(self._scheduler, "get_grammar_bitmask", "masks")
        for executor in (UniProcExecutor, MultiprocExecutor):
            self._clock(executor, "execute_model", "launch forward")
            self._clock(executor, "sample_tokens", "launch sampling")
        # These two run here only if the model does, and are parts of "launch sampling".
        self._clock(StructuredOutputsWorker, "apply_grammar_bitmask", "of it: masks")
        self._clock(gpu_model_runner, "apply_grammar_bitmask", "of it: masks")

    def _clock(self, owner: Any, name: str, place: str) -> None:
        original = getattr(owner, name)
        on_card = place == "of it: masks"
        sums = self._sums[self._label or ""]

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            if place == "schedule":
                if self._last_step:
                    sums["whole step"][0] += begin - self._last_step
                    sums["whole step"][1] += 1
                self._last_step = begin
            marks = self._mark() if on_card else None
            result = original(*args, **kwargs)
            if marks is not None:
                marks[1].record()
            sums[place][0] += time.perf_counter() - begin
            sums[place][1] += 1
            return result

        own = name in vars(owner)
        setattr(owner, name, timed)
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def _mark(self) -> tuple[Any, Any] | None:
        import torch

        if not torch.cuda.is_initialized():
            return None
        marks = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        marks[0].record()
        self._events.append(marks)
        return marks

    def _stop(self) -> None:
        while self._undo:
            self._undo.pop()()
        if self._label is None:
            return
        if self._events:
            import torch

            torch.cuda.synchronize()
            on_card = sum(begin.elapsed_time(end) for begin, end in self._events) / 1000
            self._sums[self._label]["on the card: masks"] = [on_card, len(self._events)]
            self._events = []
        plain = {label: dict(sums) for label, sums in self._sums.items()}
        Path(os.environ[TIMES_FILE]).write_text(json.dumps(plain), encoding="utf-8")
