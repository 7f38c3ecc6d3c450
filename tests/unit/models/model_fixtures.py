"""Builders shared by the tests of models: a benchmark, its rows and a tiny model that takes no time."""

from collections.abc import Sequence
from pathlib import Path

from atlas_rl.models.tiny import TinyConfig, build_tiny_model
from atlas_rl.tasks.benchmark import Benchmark, load_benchmark
from atlas_rl.tasks.row import Row
from atlas_rl.tasks.urn import UrnConfig, make_rows

SMALL = TinyConfig(hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2, num_kv_heads=1)


def urn() -> Benchmark:
    return load_benchmark("urn")


def urn_rows(num_rows: int) -> list[Row]:
    return make_rows(UrnConfig(), num_rows, seed=7, id_prefix="t")


def row_showing(letters: Sequence[str]) -> Row:
    """An urn row whose explores reveal ``letters``, eight of them."""
    (row,) = urn_rows(1)
    shown = [
        candidate.model_copy(update={"answer": letter})
        for candidate, letter in zip(row.candidates, letters, strict=True)
    ]
    return row.model_copy(update={"candidates": tuple(shown)})


def small_model(folder: Path) -> Path:
    build_tiny_model(folder, benchmark=urn(), rows=urn_rows(40), config=SMALL)
    return folder
