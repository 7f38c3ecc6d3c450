"""Builders of tables of potentials."""

import random
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path

from atlas_rl.rewards.potential_table import CountedRow, Pool, PotentialTable, TableHeader, encode_table, read_table

Key = tuple[str, str, str]
"""Question, permutation and fingerprint."""


def header(pool: Pool, *, strength: str = "4", benchmark: str = "urn") -> TableHeader:
    """Say what counts of one benchmark share."""
    return TableHeader(
        strength=Decimal(strength), pools={benchmark: pool}, runs=(), partitions=("train", "val"), from_step=0
    )


def row(key: Key, right: Sequence[int], total: Sequence[int]) -> CountedRow:
    """Count the submits of one question of the urn."""
    return CountedRow(*key, "urn", tuple(right), tuple(total))


def written(path: Path, rows: Iterable[CountedRow], strength: str = "4") -> PotentialTable:
    """Write a table whose pool is the sum of its rows, and read it."""
    rows = list(rows)
    rights, totals = (zip(*(one.right for one in rows), strict=True), zip(*(one.total for one in rows), strict=True))
    pool = Pool(right=tuple(map(sum, rights)), total=tuple(map(sum, totals)))
    path.write_bytes(encode_table(header(pool, strength=strength), rows))
    return read_table(str(path))


def random_table(path: Path, keys: Iterable[Key], num_prefixes: int, seed: int) -> PotentialTable:
    """Draw counts: up to nine submits a prefix, any share of them right."""
    rng = random.Random(f"table {seed}")
    rows = []
    for key in keys:
        total = [rng.randrange(10) for _ in range(num_prefixes)]
        rows.append(row(key, [rng.randint(0, most) for most in total], total))
    return written(path, rows, strength=str(rng.choice(["0.5", "1.25", "4"])))
