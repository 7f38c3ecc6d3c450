from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from model_fixtures import SMALL
from typer.testing import CliRunner

from atlas_rl.cli.demo import demo_prepare
from atlas_rl.data.parquet import read_rows
from atlas_rl.errors import ConfigError
from atlas_rl.models.demo import DEMOS, SPLITS, Demo, demo_named, prepare
from atlas_rl.models.warm_start import WarmStartConfig
from atlas_rl.runtime.limits import Limits
from atlas_rl.tasks.urn import UrnConfig, make_rows


@pytest.fixture(scope="module")
def quick() -> Demo:
    """The notes' demo with a handful of everything."""
    demo = DEMOS["urn_notes"]
    limits = Limits(max_prompt_length=512, max_response_length=256)
    few = replace(
        demo.warm_start, primer_steps=1, num_steps=1, batch_episodes=2, num_held_out=2, num_check_episodes=1,
        rise_steps=1, limits=limits,
    )  # fmt: skip
    return replace(demo, num_rows={"train": 3, "val": 2, "demonstrations": 6}, warm_start=few, shape=SMALL)


def test_a_demo_is_three_files_of_questions_and_a_model(tmp_path: Path, quick: Demo) -> None:
    told: list[str] = []
    prepare(tmp_path, quick, 2, told.append)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("demonstrations.parquet", "model", "train.parquet", "val.parquet")
    ]
    rows = {name: read_rows(tmp_path / f"{name}.parquet") for name in SPLITS}
    assert {name: len(found) for name, found in rows.items()} == {"train": 3, "val": 2, "demonstrations": 6}
    assert {row.benchmark for found in rows.values() for row in found} == {"urn_notes"}
    assert [line.rpartition(", ")[2] for line in told[:3]] == ["seed 6", "seed 7", "seed 8"]
    assert "wrong notes an episode" in told[3]
    assert (tmp_path / "model" / "warm_start.json").is_file()
    with pytest.raises(ConfigError, match="model is there already"):
        prepare(tmp_path, quick, 2, told.append)


def test_splits_of_no_two_seeds_share_their_draws(tmp_path: Path) -> None:
    demo = DEMOS["urn"]
    drawn = [
        tuple(row.candidates for row in make_rows(demo.urns, 20, len(SPLITS) * seed + place, "u"))
        for seed in (0, 1)
        for place in range(len(SPLITS))
    ]
    assert len(set(drawn)) == 6


def test_the_demo_of_the_urn_is_what_its_settings_default_to() -> None:
    assert DEMOS["urn"].urns == UrnConfig()
    assert DEMOS["urn"].warm_start == WarmStartConfig()
    assert DEMOS["urn"].num_rows == {"train": 4096, "val": 512, "demonstrations": 4096}


@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_is_named_after_its_benchmark_and_stops_within_its_candidates(name: str) -> None:
    demo = demo_named(name)
    assert demo.urns.benchmark == name
    primer = demo.warm_start.primer_stop
    assert primer is not None
    assert max(*demo.warm_start.stop.late, *primer.late) <= demo.urns.num_candidates


def invoke(command: Callable[..., None], *arguments: str) -> tuple[int, str, BaseException | None]:
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output, done.exception


def test_the_command_leaves_a_prepared_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert invoke(demo_prepare, "--out", str(tmp_path)) == (0, f"{tmp_path}: already prepared\n", None)


def test_the_command_names_the_demos_there_are(tmp_path: Path) -> None:
    code, _, error = invoke(demo_prepare, "--out", str(tmp_path), "--benchmark", "urns")
    assert code == 1
    assert str(error) == "demo 'urns' is not known; use one of: urn, urn_notes"
