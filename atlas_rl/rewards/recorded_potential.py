"""Potentials that are known only while a run goes on: their values lie in the trajectory, and scoring reads them there.

This is the door for a learned predictor. Whoever evaluates it does so once a trajectory, before ``score``, for every
prefix that the episode passed, and stores the values with ``with_values``. From then on the reward is a function of
the record again, whatever becomes of the weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from atlas_rl.errors import RewardError
from atlas_rl.records.base import Record
from atlas_rl.records.json_text import one_line
from atlas_rl.rewards.potentials import Potential, WeightedSum

FIELD = "potentials"
"""Key of ``Trajectory.extra`` that holds the recorded values by the name of their part."""


class RecordedValues(Record):
    """What one part said about the prefixes of one trajectory."""

    candidate_fingerprint: str
    """Candidates that were looked at."""
    source: str
    """What gave the values: sha256 of the predictor's weights, or its name and step."""
    values: tuple[float, ...]
    """[prefixes] worth of prefixes 0, 1, 2, ... in units of accuracy; at least up to the last one reached."""


@dataclass(frozen=True, slots=True)
class RecordedPotential:
    """The place of a recorded part in a sum, until ``of_record`` gives it a trajectory."""

    name: str

    def value(self, question_id: str, permutation_id: str, candidate_fingerprint: str, prefix: int) -> float:
        """Refuse: the values are in a record.

        Raises:
            RewardError: always.
        """
        raise RewardError(f"the values are in extra.{FIELD}.{self.name} of a record; pass of_record(potential, extra)")


@dataclass(slots=True)
class _Recorded:
    """The values of one trajectory, read when they are first asked for: the error then names the trajectory."""

    name: str
    extra: Mapping[str, Any]
    _read: RecordedValues | None = field(default=None, repr=False)

    def value(self, question_id: str, permutation_id: str, candidate_fingerprint: str, prefix: int) -> float:
        if self._read is None:
            self._read = read_values(self.extra, self.name)
        where = f"extra.{FIELD}.{self.name}"
        if self._read.candidate_fingerprint != candidate_fingerprint:
            raise RewardError(
                f"{where}.candidate_fingerprint={self._read.candidate_fingerprint}, the episode has "
                f"{candidate_fingerprint}; record the values of this episode's candidates"
            )
        if not 0 <= prefix < len(self._read.values):
            raise RewardError(
                f"{where}.values holds prefixes 0..{len(self._read.values) - 1}, not {prefix}; record every prefix up "
                "to the last one reached"
            )
        return self._read.values[prefix]


def of_record(potential: Potential, extra: Mapping[str, Any]) -> Potential:
    """The same potential with the recorded parts of one trajectory in it; what ``score`` must be given.

    Args:
        potential: from ``potentials.compose``; returned as it is if no part of it is recorded.
        extra: ``Trajectory.extra``.
    """
    if not isinstance(potential, WeightedSum) or not any(
        isinstance(part, RecordedPotential) for _, _, part in potential.parts
    ):
        return potential
    return WeightedSum(
        tuple(
            (name, weight, _Recorded(part.name, extra) if isinstance(part, RecordedPotential) else part)
            for name, weight, part in potential.parts
        )
    )


def with_values(
    extra: Mapping[str, Any], name: str, values: Sequence[float], *, candidate_fingerprint: str, source: str
) -> dict[str, Any]:
    """``extra`` with the values of one part in it; floats come back from the store with the same bits.

    Raises:
        RewardError: no value, one that is not finite, or the name is taken.
    """
    known = extra.get(FIELD, {})
    if name in known:
        raise RewardError(f"extra.{FIELD}.{name} is already recorded; give each part one name")
    entry = {"candidate_fingerprint": candidate_fingerprint, "source": source, "values": list(values)}
    whole = {**extra, FIELD: {**known, name: entry}}
    read_values(whole, name)
    return whole


def read_values(extra: Mapping[str, Any], name: str) -> RecordedValues:
    """The recorded values of one part.

    Raises:
        RewardError: there are none, or they are not finite numbers.
    """
    where = f"extra.{FIELD}.{name}"
    known = extra.get(FIELD)
    if not isinstance(known, Mapping) or name not in known:
        raise RewardError(f"{where} is not in the record; score runs that recorded it, or leave the part out")
    try:
        read = RecordedValues.model_validate(known[name])
    except ValidationError as error:
        raise RewardError(f"{where}: {one_line(error)}; record one finite number a prefix") from error
    if not read.values:
        raise RewardError(f"{where}.values is empty; record one finite number a prefix, from prefix 0")
    return read
