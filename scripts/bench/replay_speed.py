"""How many stored rows `atlas-rl replay` scores in a second.

Makes NUM records of TOKENS tokens from the records of a store (or from the builders of the tests), each with an id of
its own: free text and observations of every turn are stretched, ids and log-probabilities are drawn, and the stretched
record is scored and placed anew. Then it replays them as `atlas-rl replay` does. The records stay in --folder, and a
second call on the same folder only replays.

Usage: .venv/bin/python scripts/bench/replay_speed.py --folder /tmp/replay_speed [--source artifacts/RUN]
"""

import argparse
import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from atlas_rl.records.episode import Episode
from atlas_rl.records.store import TrajectoryStore, TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.reporting.replay import Replay
from atlas_rl.reporting.replay_run import replay_store
from atlas_rl.rewards.config import Preset, RewardConfig
from atlas_rl.rewards.placement import place, reward_score
from atlas_rl.rewards.potentials import ZERO
from atlas_rl.rewards.score import score

TESTS = Path(__file__).parents[2] / "tests"
REWARD = RewardConfig(preset=Preset.BOTH)
CHARACTERS_A_TOKEN = 4
"""Text that an observation gains with every token that it is stretched by."""
MAX_SOURCES = 64
"""Records that are stretched; the others are copies with new ids."""


def stretched(row: Trajectory, num_tokens: int, rng: np.random.Generator) -> Trajectory:
    """The record with a response of ``num_tokens`` tokens: half of the new ones sampled, half observed."""
    fields = row.model_dump()
    episode = fields["episode"]
    extra = num_tokens - row.episode.response_tokens
    if extra < 0 or not episode["generations"]:
        raise SystemExit(
            f"trajectory {row.uid} has {row.episode.response_tokens} tokens; give --tokens of at least that"
        )
    seen = [event for event in episode["events"] if event["observation_appended"]]
    in_observations = extra // 2 if seen else 0
    observed = _shares(in_observations, len(seen))
    sampled = _shares(extra - in_observations, len(episode["generations"]))
    by_turn = {event["turn_id"]: share for event, share in zip(seen, observed, strict=True)}
    grown = 0
    for generation, more in zip(episode["generations"], sampled, strict=True):
        generation["response_offset"] += grown
        generation["num_sampled"] += more
        generation["max_tokens"] += extra
        generation["forced"] = None
        for event in episode["events"]:
            if event["turn_id"] == generation["turn_id"]:
                _stretch_event(event, grown, more, by_turn.get(event["turn_id"], 0))
        grown += more + by_turn.get(generation["turn_id"], 0)
    episode |= {
        "response_tokens": num_tokens,
        "model_tokens": episode["model_tokens"] + sum(sampled),
        "terminal_offset": max(g["response_offset"] + g["num_sampled"] for g in episode["generations"]) - 1,
    }
    return _rescored(fields, Episode.model_validate(episode), row, rng)


def _shares(total: int, parts: int) -> list[int]:
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def _stretch_event(event: dict[str, Any], grown: int, sampled: int, observed: int) -> None:
    event["action_start_offset"] += grown
    event["action_end_offset"] += grown + sampled
    if event["observation_appended"]:
        event["observation_offset"] += grown + sampled
        event["observation_length"] += observed
        text = event["tool_response"] or "a step of reasoning "
        more = (text * (observed * CHARACTERS_A_TOKEN // len(text) + 1))[: observed * CHARACTERS_A_TOKEN]
        event["tool_response"] += more
        event["payload"]["reasoning"] = event["payload"].get("reasoning", "") + more


def _rescored(fields: dict[str, Any], episode: Episode, row: Trajectory, rng: np.random.Generator) -> Trajectory:
    scored = score(episode, row.grade, config=REWARD, subset=row.reward.subset)
    trace = place(scored)
    mask = np.zeros(episode.response_tokens, dtype=bool)
    for start, end in episode.sampled_spans:
        mask[start:end] = True
    return Trajectory.model_validate(
        fields
        | {
            "episode": episode,
            "reward": scored.breakdown,
            "reward_trace": trace,
            "reward_score": reward_score(trace),
            "response_ids": rng.integers(0, 150_000, len(mask)).tolist(),
            "response_logprobs": np.where(mask, -rng.exponential(size=len(mask)), 0.0).tolist(),
            "response_mask": mask.astype(int).tolist(),
        }
    )


def sources(source: Path | None) -> Iterator[Trajectory]:
    """Records to stretch."""
    if source is not None:
        yield from TrajectoryStore(source)
        return
    sys.path.insert(0, str(TESTS))
    from record_builders import trajectory

    yield from (trajectory(f"u{explores}", explores=explores) for explores in range(9))


def make(folder: Path, source: Path | None, first: int, last: int, num_tokens: int) -> None:
    """Write records ``first`` to ``last`` as one shard."""
    rng = np.random.default_rng(first)
    rows = [stretched(row, num_tokens, rng) for row in islice(sources(source), MAX_SOURCES)]
    with TrajectoryWriter(folder, f"w{first}") as writer:
        for number in range(first, last):
            row = rows[number % len(rows)]
            name = {"uid": f"bench-{number}"}
            writer.append(row.model_copy(update={**name, "episode": row.episode.model_copy(update=name)}))


def main() -> None:
    """Make the records if the folder is not there, replay them, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--num", type=int, default=91_975)
    parser.add_argument("--tokens", type=int, default=5_000)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    if not arguments.folder.exists():
        edges = [arguments.num * shard // arguments.shards for shard in range(arguments.shards + 1)]
        work = [(arguments.folder, arguments.source, first, last, arguments.tokens) for first, last in pairwise(edges)]
        with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
            pool.starmap(make, work, chunksize=1)
    plan = Replay(reward=REWARD, potential=ZERO, run_id=None, wants_rows=False)
    start = perf_counter()
    shards = replay_store(arguments.folder, plan, num_processes=arguments.processes)
    seconds = perf_counter() - start
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    num_rows, num_equal = sum(shard.num_rows for shard in shards), sum(shard.num_equal for shard in shards)
    first = next(iter(TrajectoryStore(arguments.folder).headers()))
    size = sum(file.stat().st_size for file in TrajectoryStore(arguments.folder).shards())
    print(
        f"replay_speed: rows={num_rows} equal={num_equal} processes={arguments.processes} seconds={seconds:.2f} "
        f"rows_per_second={num_rows / seconds:.0f} cpu_us_per_row="
        f"{sum(one.ru_utime + one.ru_stime for one in used) / num_rows * 1e6:.0f} "
        f"header_bytes_first={len(first.header)} stored_mib={size / 2**20:.0f}"
    )


if __name__ == "__main__":
    main()
