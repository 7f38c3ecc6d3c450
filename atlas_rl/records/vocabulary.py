"""The closed choices that records use."""

from enum import StrEnum


class TerminalReason(StrEnum):
    """Why an episode ended; exactly one each."""

    SUBMITTED = "submitted"
    """A submit ran; its response, if the benchmark has one, was appended."""
    SUBMITTED_OBSERVATION_DROPPED = "submitted_observation_dropped"
    """A submit ran; its response did not fit the response budget and was not appended."""
    EXPLORE_OBSERVATION_DROPPED = "explore_observation_dropped"
    """An explore ran and was charged; its observation did not fit the response budget."""
    BUDGET_EXHAUSTED = "budget_exhausted"
    """No token of the response budget was left to start a generation with."""
    LENGTH = "length"
    """A generation used all its tokens and holds no complete call."""
    NO_CALL = "no_call"
    """A generation ended by itself without a call. Unreachable with the grammar on."""
    INVALID_CALL = "invalid_call"
    """A generation holds one call that names no allowed tool or breaks its schema. Unreachable with the grammar on."""
    MULTIPLE_CALLS = "multiple_calls"
    """A generation holds more than one call. Unreachable with the grammar on."""
    MAX_TURNS = "max_turns"
    """The episode used all its turns without a submit."""
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    """A fault that is not the policy's: the row is out of the loss and of every mean."""

    @property
    def code(self) -> int:
        """The reason as a number for tensors and tables: its place in this list, from 0."""
        return list(TerminalReason).index(self)


PROTOCOL_VIOLATIONS = frozenset({TerminalReason.NO_CALL, TerminalReason.INVALID_CALL, TerminalReason.MULTIPLE_CALLS})
"""Endings that the grammar makes unreachable; each counts as one protocol violation."""

CUT_BY_LENGTH_CAP = frozenset(
    {TerminalReason.LENGTH, TerminalReason.BUDGET_EXHAUSTED, TerminalReason.EXPLORE_OBSERVATION_DROPPED}
)
"""Endings forced by the response budget before a submit: such rows leave the policy loss."""


class EventKind(StrEnum):
    """What an executed action did."""

    EXPLORE = "explore"
    SUBMIT = "submit"


class Finish(StrEnum):
    """How a generation ended."""

    EOS = "eos"
    """Its last sampled token is an end-of-turn token."""
    LENGTH = "length"
    """It used its ``max_tokens``."""


class FinishSource(StrEnum):
    """What ``Finish`` was read from; verl's own stop reason cannot tell a stop from a cut."""

    STOP_TOKEN = "stop_token"
    """The last sampled token is one of the protocol's stop ids."""
    MAX_TOKENS = "max_tokens"
    """The number of sampled tokens equals ``max_tokens``."""


class EpisodeState(StrEnum):
    """What decides the allowed tools of a turn."""

    FIRST = "first"
    """No explore has run yet."""
    OPEN = "open"
    """At least one explore has run and a candidate is left."""
    EXHAUSTED = "exhausted"
    """All ``max_explores`` candidates are revealed: submit only."""


class Partition(StrEnum):
    """Which use of the data a trajectory belongs to."""

    TRAIN = "train"
    VAL = "val"


class Verdict(StrEnum):
    """What a grader said about a submitted answer."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    """Nothing was submitted, so no grader ran."""
    UNJUDGED = "unjudged"
    """The grader could not be asked or gave no usable answer: the row becomes an infrastructure_error."""
    TIMEOUT = "grader_timeout"
    """The grader was stopped at its time limit; counts as wrong and is counted."""
