"""The urn task: a hidden letter, noisy draws with known odds and a price, and the exact value of every policy.

One of ``num_letters`` letters is hidden, each equally likely. A draw shows the hidden letter with probability
``odds`` and each other letter with probability ``(1 - odds) / (num_letters - 1)``, independently. Explores reveal
draws in order; a submit ends the episode. Because the model is known, the best possible utility is computable.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from atlas_rl.errors import ConfigError, DataError
from atlas_rl.records.breakdown import MAX_EXPLORES
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.row import Candidate, Row
from atlas_rl.tasks.urn_values import Urn


@dataclass(frozen=True, kw_only=True, slots=True)
class UrnConfig:
    """How urn questions are drawn."""

    odds: tuple[Decimal, ...] = (Decimal("0.26"), Decimal("0.7"), Decimal("0.9"))
    """Probabilities in (1 / number of letters, 1] that a draw shows the hidden letter; a question takes one, each
    equally likely. Above chance, so that the most frequent letter is always the most probable one."""
    cost_usd: Decimal = Decimal("0.8")
    """Price of one explore in US dollars, at least 0. At 0.1 of utility a dollar few explores are best."""
    num_candidates: int = MAX_EXPLORES
    """Draws a question holds, 1 to 8; all of them may be explored."""
    letters: tuple[str, ...] = ("A", "B", "C", "D")
    """At least two different letters; the benchmark's submit schema must offer exactly these."""
    benchmark: str = "urn"
    """Benchmark spec that the rows name."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: a field is outside its documented range.
        """
        if len(self.letters) < 2 or len(set(self.letters)) != len(self.letters) or "" in self.letters:
            raise ConfigError(f"urn.letters must be at least two different non-empty texts, got {self.letters}")
        if not self.odds or len(set(self.odds)) != len(self.odds):
            raise ConfigError(f"urn.odds must hold one or more different probabilities, got {self.odds}")
        for odds in self.odds:
            if not isinstance(odds, Decimal) or not Fraction(1, len(self.letters)) < odds <= 1:
                raise ConfigError(f"urn.odds must be Decimals in (1/{len(self.letters)}, 1], got {odds!r}")
        if not isinstance(self.cost_usd, Decimal) or not self.cost_usd.is_finite() or self.cost_usd < 0:
            raise ConfigError(f"urn.cost_usd must be a finite Decimal of at least 0, got {self.cost_usd!r}")
        if not 1 <= self.num_candidates <= MAX_EXPLORES:
            raise ConfigError(f"urn.num_candidates must lie in 1..{MAX_EXPLORES}, got {self.num_candidates}")
        schema = load_benchmark(self.benchmark)
        offered = schema.submit.parameters["properties"][schema.submission_field].get("enum")
        if offered != list(self.letters):
            raise ConfigError(
                f"urn.letters {list(self.letters)} are not the {offered} of benchmark {self.benchmark!r}; match them"
            )


def make_rows(config: UrnConfig, num_rows: int, seed: int, id_prefix: str) -> list[Row]:
    """Draw questions; the same arguments give the same rows, and row i does not depend on ``num_rows``.

    Raises:
        ConfigError: ``num_rows`` is negative, or ``id_prefix`` holds a slash.
    """
    if num_rows < 0 or "/" in id_prefix:
        raise ConfigError(f"urn rows need num_rows >= 0 and an id_prefix without '/', got {num_rows}, {id_prefix!r}")
    return [
        _make_row(config, random.Random(f"urn {seed} {index}"), f"{id_prefix}{index:06d}") for index in range(num_rows)
    ]


def urn_of(row: Row, *, per_dollar: Fraction | Decimal, per_explore: Fraction | Decimal) -> Urn:
    """The decision problem that a row poses under an objective: utility a dollar and utility an explore.

    Raises:
        DataError: the row is not an urn row, or its explores differ in price.
    """
    try:
        odds, num_letters = Fraction(row.facts["odds"]), int(row.facts["num_letters"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"row {row.question_id!r}: facts {row.facts} tell no odds; build it with make_rows") from error
    prices = {candidate.cost_usd for candidate in row.candidates}
    if len(prices) != 1:
        raise DataError(f"row {row.question_id!r}: an urn needs one price for all explores, got {sorted(prices)}")
    cost = Fraction(per_dollar) * Fraction(prices.pop()) + Fraction(per_explore)
    return Urn(odds=odds, num_letters=num_letters, num_candidates=row.max_explores, cost=cost)


def plurality_letter(revealed: Sequence[str]) -> str:
    """The most frequent letter; of letters that tie, the one seen first.

    Tied letters are equally probable, so the rule changes no expected utility; it only makes the choice unique.

    Raises:
        DataError: nothing was revealed.
    """
    if not revealed:
        raise DataError("plurality letter of no draws; explore at least once")
    return Counter(revealed).most_common(1)[0][0]


def posterior(urn: Urn, revealed: Sequence[str], letter: str) -> Fraction:
    """Probability that ``letter`` is the hidden one, given the revealed letters.

    Minus the cost of the explores it is an unbiased reading of utility, with less noise than right or wrong.

    Raises:
        ConfigError: the revealed letters are more than the urn has, or impossible under its odds.
    """
    counts = Counter(revealed)
    seen = [counts[letter], *(count for other, count in counts.items() if other != letter)]
    return urn.posteriors([*seen, *[0] * (urn.num_letters - len(seen))])[0]


def _make_row(config: UrnConfig, rng: random.Random, question_id: str) -> Row:
    odds = config.odds[rng.randrange(len(config.odds))]
    truth = config.letters[rng.randrange(len(config.letters))]
    wrong = [letter for letter in config.letters if letter != truth]
    num_right, num_all = odds.as_integer_ratio()
    answers = [
        truth if rng.randrange(num_all) < num_right else wrong[rng.randrange(len(wrong))]
        for _ in range(config.num_candidates)
    ]
    return Row(
        question_id=question_id,
        question=f"odds {odds}",
        benchmark=load_benchmark(config.benchmark).name,
        permutation_id="as_drawn",
        max_explores=config.num_candidates,
        candidates=tuple(
            Candidate(
                answer=answer, reasoning="", cost_usd=config.cost_usd, timed_out=False, is_correct=answer == truth
            )
            for answer in answers
        ),
        ground_truth=truth,
        data_source="urn",
        facts={"odds": str(odds), "num_letters": len(config.letters)},
    )
