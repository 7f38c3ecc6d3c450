"""Every error that atlas_rl raises on purpose, and the one helper that says whose fault a failure is.

A message is one line: what is wrong, where, the value seen, and the remedy.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class AtlasError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(AtlasError):
    """A key, value or path that the user gave cannot be used."""


class UsageError(ConfigError):
    """The command line itself cannot be read; programs exit with 2."""


class DataError(AtlasError):
    """A dataset file or one of its rows is not what the run needs."""


class RecordError(AtlasError):
    """A record contradicts itself, or a store cannot be read: a bug or damage, so the run stops."""


class GrammarError(AtlasError):
    """A tool schema, a tokenizer or a compiled grammar cannot give the protocol its guarantees."""


class EngineError(AtlasError):
    """The sampling engine failed or answered something that no healthy engine answers."""


class ToolError(AtlasError):
    """A tool failed while running a valid call; the policy is not to blame."""


class GradingError(AtlasError):
    """A grader could not give a verdict."""


class RewardError(AtlasError):
    """A reward, cost or potential cannot be computed or placed."""


class TrainingError(AtlasError):
    """The trainer's state breaks one of the promises that the run makes."""


@contextmanager
def blame(error: type[AtlasError], what: str) -> Iterator[None]:
    """Turn any foreign exception of the block into ``error`` naming ``what``, chained to its cause.

    An ``AtlasError`` passes through unchanged: it already says whose fault it is. Cancellation and
    interrupts are no ``Exception`` and pass too.

    Raises:
        AtlasError: ``error``, if the block raised something else.
    """
    try:
        yield
    except AtlasError:
        raise
    except Exception as cause:
        message = " ".join(str(cause).split()) or "no message"
        raise error(f"{what}: {type(cause).__name__}: {message}") from cause
