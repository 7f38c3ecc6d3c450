"""How far a long command is, on stderr: a bar on a terminal, a line now and then anywhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

LINE_SECONDS = 10.0
"""Wall time between two lines where there is no terminal."""


@contextmanager
def progress(what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Give a function that takes how many more of ``total`` are done."""
    if sys.stderr.isatty():
        with _bar(what, total, unit) as advance:
            yield advance
    else:
        yield _lines(what, total, unit)


@contextmanager
def _bar(what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def _lines(what: str, total: int, unit: str) -> Callable[[int], None]:
    done, last = 0, monotonic()

    def advance(count: int) -> None:
        nonlocal done, last
        done += count
        if monotonic() - last >= LINE_SECONDS:
            last = monotonic()
            print(f"{what}: {done}/{total} {unit}", file=sys.stderr, flush=True)

    return advance
