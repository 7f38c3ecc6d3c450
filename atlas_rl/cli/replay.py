"""``atlas-rl replay``: every stored trajectory scored again, to the bit, or under another reward."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from atlas_rl.errors import ConfigError

if TYPE_CHECKING:
    from atlas_rl.cli.replay_grading import Regraded
    from atlas_rl.reporting.replay import ShardReplay
    from atlas_rl.reporting.replay_reward import RunReward

OWN = "own"
"""Name of a replay under the run's own reward."""
_GRADER_SECONDS = 5.0
"""Time limit of a verdict where no run.json says one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What the command line says."""

    folder: Path
    reward: Sequence[str] = ()
    """KEY=VALUE of RewardConfig; empty: the run's own reward."""
    is_regraded: bool = False
    out: Path | None = None
    num_processes: int | None = None
    """None: one a core."""
    time_limit_seconds: float | None = None
    """Wall time of one verdict; None: the run's."""
    benchmark_files: Sequence[Path] = ()
    potentials: Sequence[str] = ()
    """NAME=PATH of tables."""


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="artifacts/RUN, or any folder that holds a store.")],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Further keys of --reward.")
    ] = None,
    reward: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A key of atlas.reward in place of the run's.")
    ] = None,
    regrade: Annotated[bool, typer.Option(help="Ask the graders again, and score by what they say.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the tables; by default DIR/replay/NAME.")] = None,
    processes: Annotated[int | None, typer.Option(help="Processes that score; by default one a core.")] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds that one verdict may take; by default the run's.")
    ] = None,
    benchmark: Annotated[
        list[Path] | None, typer.Option(help="YAML of a benchmark that does not come with atlas_rl, for --regrade.")
    ] = None,
    potential: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="Table of a part that --reward weighs.")
    ] = None,
) -> None:
    """Score a run again from its store; a row that changed under the run's own reward exits with 1."""
    if more and not reward:
        raise ConfigError(f"{' '.join(more)} stands behind DIR without --reward; write --reward {' '.join(more)}")
    options = ReplayOptions(
        folder=folder,
        reward=[*(reward or ()), *(more or ())],
        is_regraded=regrade,
        out=out,
        num_processes=processes,
        time_limit_seconds=time_limit,
        benchmark_files=benchmark or (),
        potentials=potential or (),
    )
    if not run_replay(options) and not options.reward:
        raise typer.Exit(1)


def run_replay(options: ReplayOptions) -> bool:
    """Replay, write the tables and print; whether every row came out as it was stored.

    Raises:
        ConfigError: a key cannot be used.
        DataError: the file of a potential is not the run's.
        RecordError: a row cannot be read.
        RewardError: a row cannot be scored.
    """
    from atlas_rl.cli.replay_keys import pairs, replay_name, reward_changes
    from atlas_rl.cli.replay_report import report_changes, report_comparison
    from atlas_rl.reporting.replay_reward import reward_of_run

    folder = options.folder
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; give artifacts/RUN or a folder that holds a store")
    changes = reward_changes(options.reward) if options.reward else None
    setting = reward_of_run(folder, changes, pairs("--potential", options.potentials))
    tables = options.out or folder / "replay" / (replay_name(options.reward) if options.reward else OWN)
    regraded = _regraded(options, setting, tables) if options.is_regraded else None
    shards, seconds = _replayed(options, setting, regraded)
    for shard in shards:
        for torn in shard.torn:
            print(f"torn: {torn}")
    if options.reward:
        report_comparison([row for shard in shards for row in shard.rows], tables)
    else:
        report_changes([change for shard in shards for change in shard.changes], tables)
    if regraded is not None:
        print(
            f"regrade: graded={regraded.num_graded} asked={regraded.num_asked} unjudged={regraded.num_unjudged} "
            f"moved={len(regraded.moved)}"
        )
    num_rows, num_equal = sum(shard.num_rows for shard in shards), sum(shard.num_equal for shard in shards)
    print(
        f"replay: rows={num_rows} equal={num_equal} changed={num_rows - num_equal} "
        f"rows_per_second={num_rows / seconds:.0f}"
    )
    return num_rows == num_equal


def _replayed(
    options: ReplayOptions, setting: "RunReward", regraded: "Regraded | None"
) -> tuple[list["ShardReplay"], float]:
    """What came of every shard, and the wall seconds that it took."""
    from atlas_rl.cli.progress import progress
    from atlas_rl.records.store import TrajectoryStore
    from atlas_rl.reporting.replay import Replay
    from atlas_rl.reporting.replay_run import replay_store

    plan = Replay(
        reward=setting.reward,
        potential=setting.potential,
        run_id=setting.run_id,
        wants_rows=bool(options.reward),
    )
    kibibytes = {file: file.stat().st_size >> 10 for file in TrajectoryStore(options.folder).shards()}
    start = perf_counter()
    with progress("replay", sum(kibibytes.values()), "KiB") as advance:
        shards = replay_store(
            options.folder,
            plan,
            num_processes=len(os.sched_getaffinity(0)) if options.num_processes is None else options.num_processes,
            grades=regraded.grades if regraded else None,
            on_shard=lambda shard: advance(kibibytes.get(shard.file, 0)),
        )
    return shards, perf_counter() - start


def _regraded(options: ReplayOptions, setting: "RunReward", tables: Path) -> "Regraded":
    """Ask the graders, write the verdicts that moved, and print the first of them."""
    from atlas_rl.cli.progress import progress
    from atlas_rl.cli.replay_grading import find_questions, regrade
    from atlas_rl.cli.replay_report import report_verdicts

    limit = options.time_limit_seconds
    if limit is None:
        limit = setting.grader_seconds or _GRADER_SECONDS
    if limit <= 0:
        raise ConfigError(f"--time-limit must be above 0 seconds, got {limit:g}")
    questions = find_questions(options.folder, options.benchmark_files)
    with progress("regrade", len(questions), "answers") as advance:
        regraded = regrade(questions, time_limit_seconds=limit, on_done=advance)
    report_verdicts(regraded, tables)
    return regraded
