"""Validation as numbers and as text: the views of each benchmark, and the dump of its rows."""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from math import fsum
from pathlib import Path

from atlas_rl.errors import RecordError
from atlas_rl.records.json_text import to_json
from atlas_rl.records.trajectory import TrajectoryHeader
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.reporting.manifest import write_atomically

_logger = logging.getLogger(__name__)

MEANS: dict[str, Callable[[TrajectoryHeader], float]] = {
    "acc": lambda row: row.reward.acc,
    "cost": lambda row: float(row.reward.cost),
    "reward": lambda row: row.reward_score,
    "explores": lambda row: row.reward.num_explores,
    "utility": lambda row: row.reward.utility,
    "has_answer": lambda row: row.reward.has_answer,
    "did_submit": lambda row: row.reward.did_submit,
    "overlong": lambda row: row.reward.overlong,
    "length_capped": lambda row: row.reward.length_capped,
    "invalid_call": lambda row: row.reward.invalid_call,
    "protocol_violations": lambda row: row.reward.protocol_violations,
    "model_tokens": lambda row: row.reward.model_tokens,
    "response_tokens": lambda row: row.reward.response_tokens,
    "submitted_after_correct": lambda row: row.reward.submitted_after_correct,
}
"""What each view averages over its rows; cost is in USD, reward is the sum that the trainer sees."""


def validation_views(rows: Iterable[TrajectoryHeader]) -> dict[str, float]:
    """The views of every benchmark among ``rows``.

    Keys are BENCH/overall/NAME, BENCH/subset/SUBSET/NAME for each named subset, and BENCH/rest/NAME for rows without
    one where others have one. NAME is ``count``, a key of MEANS, ``terminal/REASON`` for every reason (the share of the
    rows that ended so), or ``infrastructure_errors``. Rows that ended in infrastructure_error are in that count alone:
    not in ``count``, not in any mean or share. A view without other rows has no means.

    Raises:
        RecordError: a subset's name would be read as a part of the key.
    """
    views: dict[str, list[TrajectoryHeader]] = defaultdict(list)
    for row in rows:
        subset = row.reward.subset
        if "/" in subset:
            raise RecordError(
                f"trajectory {row.uid}_{row.session_id}: subset {subset!r} holds a '/'; rename it in the data"
            )
        views[f"{row.benchmark}/overall"].append(row)
        views[f"{row.benchmark}/subset/{subset}" if subset else f"{row.benchmark}/rest"].append(row)
    split = {name.split("/subset/")[0] for name in views if "/subset/" in name}
    numbers: dict[str, float] = {}
    for name, members in sorted(views.items()):
        if not name.endswith("/rest") or name.removesuffix("/rest") in split:
            numbers |= {f"{name}/{key}": value for key, value in _view(members).items()}
    return numbers


def _view(rows: list[TrajectoryHeader]) -> dict[str, float]:
    counted = [row for row in rows if row.episode.terminal_reason is not TerminalReason.INFRASTRUCTURE_ERROR]
    view: dict[str, float] = {"count": len(counted), "infrastructure_errors": len(rows) - len(counted)}
    if counted:
        view |= {name: fsum(map(value, counted)) / len(counted) for name, value in MEANS.items()}
        for reason in TerminalReason:
            ended_so = sum(row.episode.terminal_reason is reason for row in counted)
            view[f"terminal/{reason}"] = ended_so / len(counted)
    return view


def write_val_dump(folder: Path, step: int, rows: Iterable[tuple[TrajectoryHeader, str, str]]) -> Path:
    """Write FOLDER/STEP.jsonl, one line a row: input, output, gts, score, step, uid and the breakdown's fields.

    The file is a reading copy. A resumed run that validates a step again replaces it, with a warning; the trajectories
    of both attempts stay in the store.

    Args:
        folder: the run's val_dumps.
        step: global step of the validated weights.
        rows: a trajectory, its prompt as text, and its response as text.

    Returns:
        The file's path.
    """
    path = folder / f"{step}.jsonl"
    lines = []
    for row, prompt, response in rows:
        head = {
            "input": prompt,
            "output": response,
            "gts": row.ground_truth,
            "score": row.reward_score,
            "step": step,
            "uid": row.uid,
        }
        lines.append(json.dumps(head | json.loads(to_json(row.reward)), allow_nan=False) + "\n")
    if path.exists():
        _logger.warning("%s is replaced: step %d was validated again", path, step)
    write_atomically(path, "".join(lines).encode("ascii"))
    return path
