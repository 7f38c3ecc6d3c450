"""What each kind of call was credited with: mean advantages on its tokens, step by step."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atlas_rl.errors import RecordError
from atlas_rl.records.episode import Episode, Event
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.vocabulary import EventKind

_MANIFEST, _TENSORS = "manifest.json", "tensors.npz"
_ARRAYS = ("raw_advantages", "advantages", "policy_mask")


class Call(StrEnum):
    """Whose tokens a line of the table is about."""

    SUBMIT = "submit"
    FIRST_EXPLORE = "first_explore"
    LATER_EXPLORES = "later_explores"
    OTHER = "other"
    """Turns that ended without an executed action."""
    UNRECORDED = "unrecorded"
    """Rows that ``train_fraction`` did not store: their tokens are known, but not which call they belong to."""
    ALL = "all"
    """All of the above."""


class CallAdvantage(NamedTuple):
    """One line of the table: the calls of one kind in one training step."""

    step: int
    call: Call
    num_rows: int
    """Episodes that hold such a call; episodes without a fault for ``all``."""
    num_calls: int | None
    """Turns of this kind; None where the record is missing."""
    num_tokens: int | None
    """Sampled tokens of those turns, those that the policy loss does not read included; None likewise."""
    num_policy_tokens: int
    """Those that the policy loss read; both means are over them."""
    raw_mean: float | None
    """Mean advantage before whitening, in units of accuracy; None: no policy token."""
    whitened_mean: float | None
    """Mean advantage as the loss read it."""


@dataclass(slots=True)
class _Sums:
    num_rows: int = 0
    num_calls: int = 0
    num_tokens: int = 0
    raw: list[NDArray[np.float64]] = field(default_factory=list)
    whitened: list[NDArray[np.float64]] = field(default_factory=list)

    def line(self, step: int, call: Call, *, is_known: bool) -> CallAdvantage:
        raw, whitened = (np.concatenate([*parts, np.empty(0)]) for parts in (self.raw, self.whitened))
        return CallAdvantage(
            step=step,
            call=call,
            num_rows=self.num_rows,
            num_calls=self.num_calls if is_known else None,
            num_tokens=self.num_tokens if is_known else None,
            num_policy_tokens=len(raw),
            raw_mean=float(raw.mean()) if len(raw) else None,
            whitened_mean=float(whitened.mean()) if len(whitened) else None,
        )


class StepCalls(NamedTuple):
    """One training step."""

    lines: tuple[CallAdvantage, ...]
    """One for each of Call, in its order."""
    num_faults: int
    """Rows that ended in infrastructure_error: they have no advantage."""


class CallAdvantages(NamedTuple):
    """All training steps of a run."""

    steps: tuple[StepCalls, ...]
    unfinished: tuple[int, ...]
    """Steps that a kill ended before their advantages were written: records, but neither manifest nor tensors."""


def call_advantage(run_dir: Path) -> CallAdvantages:
    """The table of a run, from train/step_N/tensors.npz, manifest.json and the records.

    Raises:
        RecordError: there is no such run or no step of it, or its files do not belong together.
    """
    folders = {
        int(path.name.removeprefix("step_")): path
        for path in (run_dir / "train").glob("step_*")
        if path.name.removeprefix("step_").isdigit()
    }
    if not folders:
        raise RecordError(f"run {run_dir}: no train/step_N in it; give artifacts/RUN of a run that has trained")
    unfinished = [
        step
        for step, folder in sorted(folders.items())
        if not (folder / _MANIFEST).exists() and not (folder / _TENSORS).exists()
    ]
    steps = [_step(step, folder) for step, folder in sorted(folders.items()) if step not in unfinished]
    return CallAdvantages(tuple(steps), tuple(unfinished))


def _step(step: int, folder: Path) -> StepCalls:
    rows = _manifest_rows(folder)
    records = {stored.sha256: stored for stored in TrajectoryStore(folder).headers()}
    sums = {call: _Sums() for call in Call}
    num_faults = 0
    with _tensors(folder) as tensors:
        for row in rows:
            name, digest = row["row"], row["record_sha256"]
            if row["is_fault"]:
                num_faults += 1
                continue
            arrays = _row_arrays(tensors, name, folder)
            if digest is None:
                _add(sums, Call.UNRECORDED, arrays, [slice(None)])
                continue
            if digest not in records:
                raise RecordError(
                    f"{folder}: the record of row {name} with digest {digest} is not in the store; restore its shard"
                )
            episode = records[digest].decode().episode
            if len(arrays["policy_mask"]) != episode.response_tokens:
                raise RecordError(
                    f"{folder}: tensors.npz has {len(arrays['policy_mask'])} tokens for row {name}, its record "
                    f"response_tokens={episode.response_tokens}; the two are of different attempts"
                )
            for call, spans in _spans(episode).items():
                _add(sums, call, arrays, spans)
            sums[Call.ALL].num_rows += 1
    return StepCalls(tuple(_lines(step, sums)), num_faults)


def _lines(step: int, sums: Mapping[Call, _Sums]) -> Iterable[CallAdvantage]:
    unrecorded, everything = sums[Call.UNRECORDED], sums[Call.ALL]
    everything.num_rows += unrecorded.num_rows
    for call in Call:
        if call is not Call.ALL:
            everything.num_calls += sums[call].num_calls
            everything.num_tokens += sums[call].num_tokens
            everything.raw += sums[call].raw
            everything.whitened += sums[call].whitened
    for call in Call:
        is_known = call is not Call.UNRECORDED and (call is not Call.ALL or not unrecorded.num_rows)
        yield sums[call].line(step, call, is_known=is_known)


def _spans(episode: Episode) -> dict[Call, list[slice]]:
    """The sampled tokens of each turn, by the action that the turn ended in."""
    events = {event.turn_id: event for event in episode.events}
    spans: dict[Call, list[slice]] = {}
    for generation in episode.generations:
        start = generation.response_offset
        call = _call(events.get(generation.turn_id))
        spans.setdefault(call, []).append(slice(start, start + generation.num_sampled))
    return spans


def _call(event: Event | None) -> Call:
    if event is None:
        return Call.OTHER
    if event.kind is EventKind.SUBMIT:
        return Call.SUBMIT
    return Call.FIRST_EXPLORE if event.explore_k == 1 else Call.LATER_EXPLORES


def _add(sums: Mapping[Call, _Sums], call: Call, arrays: Mapping[str, NDArray[Any]], spans: Sequence[slice]) -> None:
    of_call = sums[call]
    of_call.num_rows += 1
    for span in spans:
        mask = arrays["policy_mask"][span].astype(bool)
        of_call.num_calls += 1
        of_call.num_tokens += len(mask)
        of_call.raw.append(arrays["raw_advantages"][span][mask].astype(np.float64))
        of_call.whitened.append(arrays["advantages"][span][mask].astype(np.float64))


def _manifest_rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / _MANIFEST
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
        wanted = {"row", "record_sha256", "is_fault"}
        if not all(wanted <= row.keys() for row in rows):
            raise ValueError(f"a row lacks one of {sorted(wanted)}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(
            f"{path}: {' '.join(str(error).split())}; a step that was trained has one: restore it"
        ) from error
    return rows


def _tensors(folder: Path) -> Any:
    path = folder / _TENSORS
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{path}: {' '.join(str(error).split())}; a step that was trained has one: restore it"
        ) from error


def _row_arrays(tensors: Any, name: str, folder: Path) -> dict[str, NDArray[Any]]:
    try:
        arrays = {array: tensors[f"{name}/{array}"] for array in _ARRAYS}
    except KeyError as error:
        raise RecordError(
            f"{folder / 'tensors.npz'}: {error} is not there, though manifest.json lists the row; restore the file"
        ) from error
    lengths = {array: len(values) for array, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise RecordError(
            f"{folder / 'tensors.npz'}: the arrays of row {name} have lengths {lengths}; restore the file"
        )
    bad = [array for array, values in arrays.items() if not np.isfinite(values).all()]
    if bad:
        raise RecordError(
            f"{folder / 'tensors.npz'}: {name}/{bad[0]} holds what is no finite number; the step is broken"
        )
    return arrays
