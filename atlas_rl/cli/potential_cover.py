"""Whether tables of potentials know every row of a run, before the run starts."""

from collections.abc import Mapping
from pathlib import Path

from atlas_rl.data.parquet import read_rows
from atlas_rl.errors import DataError, RewardError
from atlas_rl.rewards.potential_table import PotentialTable


def check_cover(tables: Mapping[str, PotentialTable], files: list[tuple[str, str]]) -> None:
    """Look up every prefix of every row in every table.

    Args:
        tables: by the name of their part.
        files: key and path of each dataset file.

    Raises:
        DataError: a table lacks a prefix of a row, or has the row with other candidates.
    """
    if not tables:
        return
    for key, path in files:
        for place, row in enumerate(read_rows(Path(path))):
            named = (row.question_id, row.permutation_id, row.candidate_fingerprint)
            for name, table in tables.items():
                try:
                    for prefix in range(row.max_explores + 1):
                        table.value(*named, prefix)
                except RewardError as error:
                    raise DataError(f"{key}={path} row {place}: atlas.potentials.{name}.path={error}") from error
