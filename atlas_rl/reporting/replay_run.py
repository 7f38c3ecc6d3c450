"""A whole store scored again in several processes, one shard at a time."""

import gc
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

from atlas_rl.errors import ConfigError, RecordError
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.trajectory import Grade
from atlas_rl.reporting.replay import Replay, ShardReplay, replay_shard

Grades = Mapping[tuple[Path, int], Grade]
"""New verdicts by shard and place in it."""

BYTES_A_PROCESS = 16 << 20
"""Shards worth a further process: it takes half a second to start, in which one scores some thousand rows."""


class _Shard(NamedTuple):
    """One piece of work."""

    folder: Path
    file: Path
    grades: dict[int, Grade]


def replay_store(
    folder: Path,
    replay: Replay,
    *,
    num_processes: int,
    grades: Grades | None = None,
    on_shard: Callable[[ShardReplay], None] = lambda _: None,
) -> list[ShardReplay]:
    """Score every row under ``folder`` again; the result is in the order of the store, however many processes work.

    Args:
        folder: artifacts/RUN, or any folder with shards in it.
        replay: the reward.
        num_processes: most processes that work at once, at least 1; a small store is left to this one.
        grades: verdicts that take the place of the stored ones.
        on_shard: called in this process as shards are done, in the order of the store.

    Raises:
        ConfigError: the number of processes is below 1.
        RecordError: there is nothing stored, or a row cannot be read.
        RewardError: a row cannot be scored.
    """
    if num_processes < 1:
        raise ConfigError(f"--processes must be at least 1, got {num_processes}")
    shards = TrajectoryStore(folder).shards()
    if not shards:
        raise RecordError(f"trajectory store {folder}: no *.arrows file under it; give artifacts/RUN or a folder in it")
    by_file: dict[Path, dict[int, Grade]] = defaultdict(dict)
    for (file, row), grade in (grades or {}).items():
        by_file[file][row] = grade
    done = []
    work = [_Shard(folder, file, by_file.get(file, {})) for file in shards]
    num_bytes = sum(file.stat().st_size for file in shards)
    for shard in _replayed(work, replay, min(num_processes, len(shards), 1 + num_bytes // BYTES_A_PROCESS)):
        on_shard(shard)
        done.append(shard)
    return done


def _replayed(work: list[_Shard], replay: Replay, num_processes: int) -> Iterator[ShardReplay]:
    if num_processes == 1:
        yield from (replay_shard(shard.folder, shard.file, replay, shard.grades) for shard in work)
        return
    # Fresh interpreters: pyarrow and a progress bar have threads, which a fork would leave behind half alive.
    with ProcessPoolExecutor(
        num_processes, multiprocessing.get_context("spawn"), initializer=_start, initargs=(replay,)
    ) as pool:
        try:
            yield from pool.map(_work, work)
        except BrokenProcessPool as error:
            raise RecordError(
                f"a process that replays {work[0].folder} was killed, by the system if memory ran out; use fewer "
                "--processes"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_replay: Replay | None = None
"""What a working process scores by, given once instead of with every shard."""


def _start(replay: Replay) -> None:
    global _replay
    _replay = replay
    # Records hold no cycles; the collector would walk thousands of them for nothing.
    gc.freeze()
    gc.disable()


def _work(shard: _Shard) -> ShardReplay:
    assert _replay is not None
    return replay_shard(shard.folder, shard.file, _replay, shard.grades)
