"""A replay in several processes says what one process says, and a broken row in one of them stops it."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from replay_runs import BOTH, rows, stored_run

from atlas_rl.errors import RecordError
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.reporting import replay_run
from atlas_rl.reporting.replay import Replay
from atlas_rl.rewards.config import Preset, RewardConfig
from atlas_rl.rewards.potentials import ZERO, compose

PLAN = Replay(reward=BOTH, potential=ZERO, run_id="run-a", wants_rows=False)


@pytest.fixture(autouse=True)
def _every_shard_is_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_run, "BYTES_A_PROCESS", 1)


def steps(*, broken: int | None = None) -> list[Trajectory]:
    found = [row for step in range(1, 6) for row in rows(3, global_steps=step)]
    if broken is not None:
        found[broken] = found[broken].model_copy(update={"reward_score": 9.0})
    return found


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, reward=RewardConfig(preset=Preset.DOLLAR_0_1), wants_rows=True),
        replace(
            PLAN,
            reward=replace(BOTH, potentials=(("zero", Decimal(2)),)),
            potential=compose((("zero", Decimal(2)),)),
        ),
    ],
)
def test_two_processes_find_what_one_finds_in_the_same_order(tmp_path: Path, plan: Replay) -> None:
    folder = stored_run(tmp_path, *steps(broken=7))
    seen: list[Path] = []
    two = replay_run.replay_store(folder, plan, num_processes=2, on_shard=lambda shard: seen.append(shard.file))
    assert two == replay_run.replay_store(folder, plan, num_processes=1)
    assert seen == [shard.file for shard in two]
    assert sum(shard.num_rows for shard in two) == 15


def test_a_row_that_cannot_be_read_stops_every_process_with_its_one_line(tmp_path: Path) -> None:
    rows_of = steps()
    rows_of[7] = rows_of[7].model_copy(
        update={"run_id": "b", "episode": rows_of[7].episode.model_copy(update={"run_id": "b"})}
    )
    with pytest.raises(RecordError, match=r"step_3/w-00000\.arrows row 1: trajectory 'u1'_0: run_id='b' in the folder"):
        replay_run.replay_store(stored_run(tmp_path, *rows_of), PLAN, num_processes=2)
