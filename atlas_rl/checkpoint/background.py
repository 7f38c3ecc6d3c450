"""One piece of work in a thread, whose outcome somebody has to ask for."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Runs ``work`` at once in a thread of its own.

    The thread is a daemon: a process that must not lose the work asks for its outcome before it ends.
    """

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        self._outcome: list[T] = []
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._outcome.append(work())
            # The thread has no caller; whoever asks for the outcome gets the exception, whatever it is.
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """True once the work has ended, well or not."""
        return not self._thread.is_alive()

    def outcome(self) -> T:
        """Wait for the end of the work and return what it returned.

        Raises:
            BaseException: what the work raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._outcome[0]
