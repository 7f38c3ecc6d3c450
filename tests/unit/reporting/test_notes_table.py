import csv
from pathlib import Path
from typing import Any

import pytest

from atlas_rl.errors import RecordError
from atlas_rl.records.vocabulary import Partition
from atlas_rl.reporting.manifest import Manifest, PotentialBinding, build_manifest
from atlas_rl.reporting.notes import NotesAtStep
from atlas_rl.reporting.notes_table import NotesRun, Spread, markdown, merge, mode_and_seed, write_csv


def at(step: int, wrong: float, *, partition: Partition = Partition.TRAIN, **changed: Any) -> NotesAtStep:
    values = {
        "episodes": 64, "infrastructure_errors": 0, "notes": 4.0, "wrong_notes": wrong, "wrong_share": wrong / 4,
        "text_tokens": 1.5, "note_nats": 0.25, "utility": 0.5, "explores": 3.0, **changed,
    }  # fmt: skip
    return NotesAtStep(partition=partition, step=step, **values)


def run(mode: str, seed: int, *steps: NotesAtStep) -> NotesRun:
    return NotesRun(mode=mode, seed=seed, run_id=f"{mode}-{seed}", steps=steps)


def runs() -> list[NotesRun]:
    val = {"partition": Partition.VAL}
    return [
        run("grammar", 0, at(1, 0.5, ppo_kl=0.25), at(2, 1.0, ppo_kl=0.5), at(0, 0.0, **val)),
        run("full_vocab", 0, at(1, 4.0)),
        run("grammar", 1, at(1, 1.5, ppo_kl=0.75), at(2, 3.0)),
    ]


def manifest(config: dict[str, Any]) -> Manifest:
    potential = PotentialBinding(name="zero", sha256="0" * 64)
    return build_manifest("r", config, potential=potential, grammar_hashes={}, protocol_token_ids={})


def config(logprobs: str, train_forced_tokens: bool) -> dict[str, Any]:
    policy = {"logprobs": logprobs, "train_forced_tokens": train_forced_tokens}
    return {"atlas": {"policy": policy, "run": {"seed": 3}}}


def test_a_figure_is_the_mean_and_the_range_over_the_runs_that_have_the_step() -> None:
    merged = merge(runs())
    places = [(one.partition, one.mode, one.step, one.num_runs) for one in merged]
    train, val = Partition.TRAIN, Partition.VAL
    assert places == [
        (train, "grammar", 1, 2),
        (train, "grammar", 2, 2),
        (train, "full_vocab", 1, 1),
        (val, "grammar", 0, 1),
    ]
    assert [one.figures["wrong_notes"] for one in merged] == [
        Spread(mean=1.0, low=0.5, high=1.5),
        Spread(mean=2.0, low=1.0, high=3.0),
        Spread(mean=4.0, low=4.0, high=4.0),
        Spread(mean=0.0, low=0.0, high=0.0),
    ]


def test_a_figure_that_one_run_lacks_is_unknown() -> None:
    merged = merge(runs())
    assert [one.figures["ppo_kl"] for one in merged] == [Spread(mean=0.5, low=0.25, high=0.75), None, None, None]


def test_two_runs_of_one_mode_and_seed_are_refused() -> None:
    with pytest.raises(RecordError, match="runs grammar-0 and grammar-0 are both grammar, seed 0; give one of them"):
        merge([*runs(), run("grammar", 0, at(1, 0.0))])


def test_the_table_has_a_row_a_step_and_a_dash_for_what_is_unknown() -> None:
    assert markdown(merge(runs()), Partition.TRAIN) == [
        "| mode | step | runs | wrong notes an episode | of all notes | nats a note "
        "| policy entropy | ppo_kl | utility | explores |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| grammar | 1 | 2 | 1 (0.5 to 1.5) | 0.25 (0.125 to 0.375) | 0.25 (0.25 to 0.25) | - | 0.5 (0.25 to 0.75) "
        "| 0.5 (0.5 to 0.5) | 3 (3 to 3) |",
        "| grammar | 2 | 2 | 2 (1 to 3) | 0.5 (0.25 to 0.75) | 0.25 (0.25 to 0.25) | - | - | 0.5 (0.5 to 0.5) "
        "| 3 (3 to 3) |",
        "| full_vocab | 1 | 1 | 4 (4 to 4) | 1 (1 to 1) | 0.25 (0.25 to 0.25) | - | - | 0.5 (0.5 to 0.5) "
        "| 3 (3 to 3) |",
    ]


def test_the_files_hold_every_run_and_every_mode(tmp_path: Path) -> None:
    by_run, by_mode = write_csv(tmp_path / "table", runs(), merge(runs()))
    with by_run.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["partition"], row["step"], row["wrong_notes"], row["ppo_kl"]) for row in rows] == [
        ("grammar-0", "train", "1", "0.5", "0.25"),
        ("grammar-0", "train", "2", "1.0", "0.5"),
        ("grammar-0", "val", "0", "0.0", ""),
        ("full_vocab-0", "train", "1", "4.0", ""),
        ("grammar-1", "train", "1", "1.5", "0.75"),
        ("grammar-1", "train", "2", "3.0", ""),
    ]
    with by_mode.open(newline="") as file:
        rows = list(csv.DictReader(file))
    shown = [(row["mode"], row["wrong_notes"], row["wrong_notes_min"], row["wrong_notes_max"]) for row in rows]
    assert shown == [
        ("grammar", "1.0", "0.5", "1.5"),
        ("grammar", "2.0", "1.0", "3.0"),
        ("full_vocab", "4.0", "4.0", "4.0"),
        ("grammar", "0.0", "0.0", "0.0"),
    ]
    assert rows[1]["ppo_kl"] == rows[1]["ppo_kl_max"] == ""


@pytest.mark.parametrize(
    ("logprobs", "train_forced_tokens", "mode"),
    [
        ("full_vocab", True, "full_vocab"),
        ("full_vocab", False, "full_vocab without forced tokens"),
        ("grammar", True, "grammar"),
        ("grammar", False, "grammar"),
    ],
)
def test_the_mode_of_a_run_is_read_from_its_configuration(logprobs: str, train_forced_tokens: bool, mode: str) -> None:
    assert mode_and_seed(manifest(config(logprobs, train_forced_tokens))) == (mode, 3)


def test_a_run_older_than_the_modes_is_refused() -> None:
    with pytest.raises(RecordError, match="run r: its configuration lacks 'policy'; only runs with"):
        mode_and_seed(manifest({"atlas": {"run": {"seed": 3}}}))
