"""Urn questions whose observations have every length, for the boundary rollout stage.

A row's observations end in a filler of digits, and over the rows the filler takes every length from 0 on. Whatever a
policy's first turn leaves of the response budget, some row's observation exceeds it, some row's fits it exactly, and
some row's leaves too little for a call. That a budget is met exactly is no luck then, but holds for any policy.
"""

from dataclasses import dataclass

from atlas_rl.errors import ConfigError
from atlas_rl.records.breakdown import MAX_EXPLORES
from atlas_rl.tasks.row import Row
from atlas_rl.tasks.urn import UrnConfig, make_rows

_DIGITS = "0123456789"
"""Tokenizers keep digits apart, so a filler of n digits is n tokens or nearly so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundaryConfig:
    """Which lengths the observations take."""

    longest_filler: int = 120
    """Digits of the longest filler, at least 1; with the glue around it, it should be over the response budget."""
    num_candidates: tuple[int, ...] = (1, MAX_EXPLORES)
    """Candidates of the rows of each length, 1 to 8 each: with 1 the second turn is a submit, whatever the policy."""
    benchmark: str = "urn_boundary"
    """Benchmark spec that the rows name."""

    def __post_init__(self) -> None:
        """Check what UrnConfig does not.

        Raises:
            ConfigError: a field is outside its documented range.
        """
        if self.longest_filler < 1:
            raise ConfigError(f"boundary.longest_filler must be at least 1, got {self.longest_filler}")
        if not self.num_candidates or len(set(self.num_candidates)) != len(self.num_candidates):
            raise ConfigError(
                f"boundary.num_candidates must be one or more different counts, got {self.num_candidates}"
            )


def make_boundary_rows(config: BoundaryConfig, seed: int) -> list[Row]:
    """One row a filler length and count of candidates, by length; the seed draws the letters and odds."""
    num_lengths = config.longest_filler + 1
    drawn = [
        make_rows(
            UrnConfig(num_candidates=count, benchmark=config.benchmark), num_lengths, seed, f"boundary-of{count}-"
        )
        for count in config.num_candidates
    ]
    return [_filled(row, length) for length, rows in enumerate(zip(*drawn, strict=True)) for row in rows]


def _filled(row: Row, length: int) -> Row:
    filler = (_DIGITS * (length // len(_DIGITS) + 1))[:length]
    candidates = tuple(candidate.model_copy(update={"reasoning": filler}) for candidate in row.candidates)
    return row.model_copy(update={"candidates": candidates, "facts": {**row.facts, "filler": length}})
