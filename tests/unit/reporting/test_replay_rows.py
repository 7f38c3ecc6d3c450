"""A stored row scored again: equal to the bit, or every field that is not, or an error that names row and field."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from record_builders import trajectory
from replay_runs import BOTH, earned, rows, stored_run

from atlas_rl.errors import ConfigError, RecordError, RewardError
from atlas_rl.records.store import TrajectoryStore, TrajectoryWriter
from atlas_rl.records.trajectory import Grade, PlacedReward, Trajectory
from atlas_rl.records.vocabulary import TerminalReason, Verdict
from atlas_rl.reporting import replay as replay_module
from atlas_rl.reporting.replay import Replay, ShardReplay, changed_fields
from atlas_rl.reporting.replay_run import replay_store
from atlas_rl.rewards.config import Preset, RewardConfig
from atlas_rl.rewards.potentials import ZERO, Potential, WeightedSum

PLAN = Replay(reward=BOTH, potential=ZERO, run_id="run-a", wants_rows=False)


def replayed(folder: Path, plan: Replay = PLAN, **options: Any) -> ShardReplay:
    """The one shard of a run."""
    (shard,) = replay_store(folder, plan, num_processes=1, **options)
    return shard


def changed(folder: Path, plan: Replay = PLAN) -> list[tuple[str, str, str]]:
    return [(change.field, change.stored, change.new) for change in replayed(folder, plan).changes]


def stored(folder: Path, row: Trajectory) -> Path:
    return stored_run(folder, row)


def with_reward(row: Trajectory, **changes: Any) -> Trajectory:
    return row.model_copy(update={"reward": row.reward.model_copy(update=changes)})


def test_a_run_replays_to_the_same_bits(tmp_path: Path) -> None:
    ended = [earned(trajectory(f"e{reason.code}", reason=reason, correct=False)) for reason in TerminalReason]
    graded = [
        row.model_copy(update={"grade": row.grade.model_copy(update={"verdict": Verdict.WRONG})}) for row in ended
    ]
    shard = replayed(stored_run(tmp_path, *rows(9), *graded))
    assert (shard.num_rows, shard.num_equal, shard.changes, shard.rows) == (19, 19, [], [])


@pytest.mark.parametrize(
    ("damage", "field", "old", "new"),
    [
        (lambda row: with_reward(row, objective=-0.5), "objective", "-0.5", "0.95999998"),
        (lambda row: with_reward(row, format_score=-0.0), "format_score", "-0.0", "0.0"),
        (lambda row: with_reward(row, utility=0.9599999799999999), "utility", "0.9599999799999999", "0.95999998"),
        (lambda row: with_reward(row, cost=Decimal("0.00000020")), "cost", "2.0E-7", "2E-7"),
        (lambda row: with_reward(row, did_submit=False), "did_submit", "False", "True"),
        (lambda row: row.model_copy(update={"reward_score": -0.0}), "reward_score", "-0.0", "0.9599999785423279"),
    ],
)
def test_one_other_bit_is_a_change_that_shows_both_values(
    tmp_path: Path, damage: Callable[[Trajectory], Trajectory], field: str, old: str, new: str
) -> None:
    folder = stored(tmp_path, damage(rows(3)[2]))
    assert changed(folder) == [(field, old, new)]
    assert replayed(folder).num_equal == 0


def test_a_trace_that_slid_to_another_sampled_token_is_a_change(tmp_path: Path) -> None:
    row = rows(2)[1]
    slid = (row.reward_trace[0].model_copy(update={"offset": 4}), row.reward_trace[1])
    first, last = (entry.value for entry in row.reward_trace)
    assert changed(stored(tmp_path, row.model_copy(update={"reward_trace": slid}))) == [
        ("reward_trace", f"4:{first!r} 15:{last!r}", f"5:{first!r} 15:{last!r}")
    ]


def test_a_trace_entry_of_minus_zero_is_a_change(tmp_path: Path) -> None:
    row = earned(trajectory("u0", explores=0, correct=False))
    assert row.reward_trace == (PlacedReward(offset=5, value=0.0),)
    minus = row.model_copy(update={"reward_trace": (PlacedReward(offset=5, value=-0.0),)})
    assert changed(stored(tmp_path, minus)) == [("reward_trace", "5:-0.0", "5:0.0")]


def test_fields_are_compared_by_their_bits_one_by_one() -> None:
    reward = rows(2)[1].reward
    assert changed_fields(reward, reward.model_copy()) == []
    for name in type(reward).model_fields:
        other: Any = {float: 9.5, int: 9, bool: None, str: "x", Decimal: Decimal(9)}[type(getattr(reward, name))]
        other = not getattr(reward, name) if other is None else other
        assert changed_fields(reward, reward.model_copy(update={name: other})) == [name]


def test_another_reward_gives_each_row_its_old_and_new_amounts(tmp_path: Path) -> None:
    plan = replace(PLAN, reward=RewardConfig(preset=Preset.EXPLORE_0_01), wants_rows=True)
    shard = replayed(stored_run(tmp_path, *rows(3)), plan)
    assert [(row.key.uid, row.old.objective, row.new.objective, row.is_equal) for row in shard.rows] == [
        ("u0", 1.0, 1.0, True),
        ("u1", -0.02000001, -0.01, False),
        ("u2", 0.95999998, 0.98, False),
    ]
    assert (shard.num_rows, shard.num_equal, shard.changes) == (3, 1, [])


def test_a_new_verdict_takes_the_place_of_the_stored_one(tmp_path: Path) -> None:
    folder = stored_run(tmp_path, *rows(2))
    (file,) = TrajectoryStore(folder).shards()
    correct = Grade(grader="exact", version="2", verdict=Verdict.CORRECT, seconds=0.0, detail="")
    shard = replayed(folder, grades={(file, 1): correct})
    assert {change.key.uid for change in shard.changes} == {"u1"}
    assert ("acc", "0.0", "1.0") in [(change.field, change.stored, change.new) for change in shard.changes]


def test_a_torn_row_is_reported_and_the_others_count(tmp_path: Path) -> None:
    folder = stored_run(tmp_path, *rows(3))
    (file,) = TrajectoryStore(folder).shards()
    file.write_bytes(file.read_bytes()[:-400])
    shard = replayed(folder)
    assert (shard.num_rows, shard.num_equal) == (2, 2)
    assert [line.split(",")[0] for line in shard.torn] == [f"{file}: after 2 whole rows"]


# ------------------------------------------------------------------------------------------------ bad input


@dataclass(frozen=True)
class Endless:
    """A potential that is infinite from the second prefix on."""

    def value(self, question_id: str, permutation_id: str, candidate_fingerprint: str, prefix: int) -> float:
        return float("inf") if prefix else 0.0


def test_an_infinite_potential_names_the_row_and_the_prefix(tmp_path: Path) -> None:
    reward = replace(BOTH, potentials=(("endless", Decimal(1)),))
    plan = replace(PLAN, reward=reward, potential=_sum(Endless()))
    with pytest.raises(RewardError, match=r"w-00000\.arrows row 1: trajectory 'u1'_0: .*prefix 1 is inf"):
        replayed(stored_run(tmp_path, *rows(2)), plan)


def _sum(part: Potential) -> Potential:
    return WeightedSum((("endless", Fraction(1), part),))


def test_a_reward_on_an_unsampled_token_names_the_row_and_the_entry(tmp_path: Path) -> None:
    row = rows(2)[1]
    slid = (row.reward_trace[0].model_copy(update={"offset": 6}), row.reward_trace[1])
    folder = stored(tmp_path, row.model_copy(update={"reward_trace": slid}))
    with pytest.raises(RecordError, match=r"row 0: trajectory 'u1'_0: reward_trace\.0\.offset=6 is no sampled token"):
        replayed(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward.objective", float("nan")),
        ("reward.cost", "NaN"),
        ("reward_score", float("inf")),
        ("reward_trace.0.value", float("nan")),
        ("reward_trace.0.offset", -1),
        ("episode.events.0.charged_cost_usd", "Infinity"),
        ("episode.events.0.charged_cost_usd", "-1"),
        ("grade.seconds", float("nan")),
    ],
)
def test_what_is_no_number_names_the_row_and_the_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: Any
) -> None:
    (stored_row,) = TrajectoryStore(stored_run(tmp_path, rows(2)[1])).headers()
    fields = json.loads(stored_row.header)
    *path, last = [int(name) if name.isdigit() else name for name in field.split(".")]
    node: Any = fields
    for name in path:
        node = node[name]
    node[last] = value
    broken = replace(stored_row, header=json.dumps(fields).encode())
    monkeypatch.setattr(replay_module.TrajectoryStore, "headers", lambda *_: iter([broken]))
    with pytest.raises(RecordError) as caught:
        replayed(tmp_path)
    assert "row 0: trajectory 'u1'_0: not a valid TrajectoryHeader: " in str(caught.value)
    assert f"{field}: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_row_of_another_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"trajectory 'u0'_0: run_id='run-a' in the folder of run 'other'; move it"):
        replayed(stored_run(tmp_path, *rows(1)), replace(PLAN, run_id="other"))


def test_a_folder_without_shards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no \*\.arrows file under it"):
        replay_store(tmp_path, PLAN, num_processes=1)


def test_no_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--processes must be at least 1, got 0"):
        replay_store(tmp_path, PLAN, num_processes=0)


def test_a_replay_changes_nothing_that_is_stored(tmp_path: Path) -> None:
    folder = stored_run(tmp_path, *rows(2))
    TrajectoryWriter(folder / "val" / "step_0", "w").close()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    replay_store(folder, PLAN, num_processes=1)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
