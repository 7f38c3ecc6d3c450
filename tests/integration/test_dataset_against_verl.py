"""verl's own dataset reads our files, and what it hands on is the row that was written."""

from pathlib import Path

from omegaconf import OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

from atlas_rl.data.parquet import benchmark_from_extra_info, row_from_extra_info, write_rows
from atlas_rl.tasks.row import Row
from atlas_rl.tasks.sequential import messages
from atlas_rl.tasks.urn import UrnConfig, make_rows


def test_files_of_two_benchmarks_join_and_give_back_their_rows(tmp_path: Path) -> None:
    urn = make_rows(UrnConfig(), 3, seed=0, id_prefix="q")
    math = [Row(**{**dict(row), "benchmark": "gsm8k", "data_source": "gsm8k", "facts": {}}) for row in urn[:2]]
    write_rows(urn, "urn", tmp_path / "urn.parquet")
    write_rows(math, "gsm8k", tmp_path / "math.parquet")
    files = [str(tmp_path / "urn.parquet"), str(tmp_path / "math.parquet")]
    config = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": str(tmp_path / "cache")})
    dataset = RLHFDataset(files, None, config)
    batch = collate_fn([dataset[place] for place in range(len(dataset))])
    columns = list(zip(batch["extra_info"], batch["reward_model"], batch["data_source"], strict=True))
    assert [row_from_extra_info(*column) for column in columns] == [*urn, *math]
    for column, prompt, row in zip(columns, batch["raw_prompt"], [*urn, *math], strict=True):
        assert prompt == messages(benchmark_from_extra_info(column[0]), row)
