"""The parquet files of a run, every row of each checked."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from omegaconf import OmegaConf

from atlas_rl.cli.verl_keys import count
from atlas_rl.data.parquet import read_rows
from atlas_rl.errors import ConfigError, DataError, blame
from atlas_rl.tasks.benchmark import Benchmark, load_benchmark
from atlas_rl.tasks.sequential import messages


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFile:
    """A file of valid rows; the candidates are not kept."""

    path: str
    """As the configuration gives it."""
    sha256: str
    openings: tuple[tuple[str, list[dict[str, str]]], ...]
    """[num_rows] the benchmark_spec and the opening messages of each row."""

    @property
    def specs(self) -> tuple[str, ...]:
        """Every benchmark_spec that a row names, in order of appearance."""
        return tuple(dict.fromkeys(spec for spec, _ in self.openings))


def read_datasets(config: Any, key: str) -> list[DatasetFile]:
    """Read and check the files that a key names.

    Raises:
        ConfigError: the key names none or one that is not there, or a row names a benchmark that does not exist.
        DataError: a file is no parquet, or a row of it is not what it must be.
    """
    value = OmegaConf.select(config, key)
    paths = list(value) if OmegaConf.is_list(value) else [value]
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise ConfigError(f"{key} must be a parquet file or a list of them, got {value}")
    return [_read_dataset(key, path) for path in paths]


def _read_dataset(key: str, path: str) -> DatasetFile:
    if not path.endswith(".parquet"):
        raise ConfigError(f"{key}={path}: verl reads a file by its ending; name it FILE.parquet")
    if not Path(path).is_file():
        raise ConfigError(f"{key}={path}: no such file; build it, or give the path from {Path.cwd()}")
    with blame(DataError, f"{path}: cannot be read"):
        with Path(path).open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        rows = read_rows(Path(path))
        specs = pq.ParquetFile(path).read(columns=["extra_info.benchmark_spec"]).column("extra_info").to_pylist()
    openings = []
    for row, extra_info in zip(rows, specs, strict=True):
        spec = extra_info["benchmark_spec"]
        openings.append((spec, messages(load_benchmark(spec), row)))
    return DatasetFile(path=path, sha256=sha256, openings=tuple(openings))


def check_batch_fits(config: Any, files: list[DatasetFile]) -> None:
    """Refuse training files with fewer rows than a batch: verl drops the last, partial batch, so no step would run.

    Raises:
        ConfigError: as said.
    """
    num_rows = sum(len(file.openings) for file in files)
    most = OmegaConf.select(config, "data.train_max_samples")
    used = min(num_rows, most) if isinstance(most, int) and most > 0 else num_rows
    batch = count(config, "data.train_batch_size")
    if used < batch:
        limit = "" if used == num_rows else f", of which data.train_max_samples={most} are used"
        raise ConfigError(
            f"data.train_batch_size={batch} is more than the {num_rows} rows of "
            f"{', '.join(file.path for file in files)}{limit}; lower it to at most {used}"
        )


def benchmarks_of(files: list[DatasetFile]) -> dict[str, Benchmark]:
    """The surface of every benchmark_spec that a row names.

    Raises:
        ConfigError: two files describe one benchmark differently, or a submit can leave out the answer.
    """
    found: dict[str, Benchmark] = {}
    for file in files:
        for spec in file.specs:
            benchmark = load_benchmark(spec)
            for other, seen in found.items():
                if seen.name == benchmark.name and seen != benchmark:
                    raise ConfigError(
                        f"{file.path}: benchmark_spec {spec!r} describes {benchmark.name!r} otherwise than {other!r} "
                        "does, which other rows of the run use; give it a name of its own"
                    )
            required = benchmark.submit.parameters.get("required", [])
            if benchmark.submission_field not in required:
                raise ConfigError(
                    f"{file.path}: benchmark_spec {spec!r}: submission_field {benchmark.submission_field!r} is not in "
                    f"submit's required arguments {required}; add it"
                )
            found[spec] = benchmark
    return found
