"""Questions and an untrained tiny model for runs that only have to run."""

from pathlib import Path

from atlas_rl.data.parquet import write_rows
from atlas_rl.models.tiny import build_tiny_model
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows


def write_tiny_urn(work: Path, num_train: int) -> None:
    """train.parquet of ``num_train`` questions, val.parquet of 8, and the folder model."""
    write_rows(make_rows(UrnConfig(), num_train, 0, "train-"), "urn", work / "train.parquet")
    write_rows(make_rows(UrnConfig(), 8, 1, "val-"), "urn", work / "val.parquet")
    rows = make_rows(UrnConfig(), 64, 7, "tokenizer-")
    build_tiny_model(work / "model", benchmark=load_benchmark("urn"), rows=rows, seed=0)
