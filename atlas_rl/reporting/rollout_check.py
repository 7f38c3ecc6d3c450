"""The check of a rollout stage: how its episodes ended, and every promise recomputed from the stored records alone."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from atlas_rl.errors import RecordError, RewardError
from atlas_rl.records.base import Record
from atlas_rl.records.json_text import to_json
from atlas_rl.records.store import TrajectoryStore
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import PROTOCOL_VIOLATIONS, Partition, TerminalReason
from atlas_rl.reporting.manifest import RUN_FILE, read_manifest, write_atomically
from atlas_rl.reporting.rollout_actions import call_faults, event_faults, grammar_faults, terminal_faults
from atlas_rl.reporting.rollout_promises import Promises, read_promises
from atlas_rl.reporting.rollout_repeats import Repeats, name_of
from atlas_rl.reporting.rollout_rewards import decomposition_faults, mapping_faults, score_faults
from atlas_rl.reporting.rollout_tokens import (
    budget_faults,
    drop_faults,
    finish_faults,
    forced_faults,
    mask_faults,
    offset_faults,
)

CHECK_FILE = "rollout_check.json"

REACHABLE = (
    TerminalReason.SUBMITTED,
    TerminalReason.SUBMITTED_OBSERVATION_DROPPED,
    TerminalReason.EXPLORE_OBSERVATION_DROPPED,
    TerminalReason.BUDGET_EXHAUSTED,
    TerminalReason.LENGTH,
    TerminalReason.MAX_TURNS,
)
"""How an episode can end while the grammar is on and nothing breaks."""

ROW_CHECKS: Mapping[str, Callable[[Trajectory, Promises], Iterator[str]]] = {
    "offsets": offset_faults,
    "mask": mask_faults,
    "forced": forced_faults,
    "budgets": budget_faults,
    "finish": finish_faults,
    "drops": drop_faults,
    "grammar": grammar_faults,
    "calls": call_faults,
    "events": event_faults,
    "terminal": terminal_faults,
    "score": score_faults,
    "mapping": mapping_faults,
    "decomposition": decomposition_faults,
}
"""Invariants that one episode decides; the functions say what each is."""

_COMPLETE, _REPEATED, _FAULTS, _VIOLATIONS = "complete", "repeated", "faults", "violations"


class ReasonCount(Record):
    """The episodes that ended in one way."""

    episodes: int
    generations: int
    turns_max: int
    """Most turns that one of them took."""
    model_tokens: int
    """Sampled tokens."""
    response_tokens: int
    """Sampled tokens, template glue and observations."""


class Invariant(Record):
    """One promise over all episodes."""

    checked: int
    """Episodes that it was recomputed for."""
    failures: int
    """Those that break it."""
    first: str | None
    """The first of them and what is wrong with it."""


class RolloutCheck(Record):
    """What the records of a run say."""

    check_version: int = 1
    run_id: str
    max_response_length: int
    max_turns: int
    num_trajectories: int
    num_generations: int
    reasons: dict[TerminalReason, ReasonCount]
    """Every terminal reason, also those that did not occur."""
    missing: tuple[TerminalReason, ...]
    """Those of REACHABLE that no episode ended in."""
    protocol_violations: int
    invariants: dict[str, Invariant]
    num_drops: int
    """Observations that were dropped."""
    num_drops_proven: int
    """Those whose text stands in another episode, so that its length is known."""
    wants_all_reasons: bool

    @property
    def num_failures(self) -> int:
        """Breaches of all invariants together."""
        return sum(one.failures for one in self.invariants.values())

    @property
    def is_passed(self) -> bool:
        """Whether there are episodes, every invariant holds and no wanted reason is missing."""
        return bool(self.num_trajectories) and not self.num_failures and not (self.wants_all_reasons and self.missing)


def check_rollout(run_dir: Path, *, all_reasons: bool) -> RolloutCheck:
    """Check the run in ``run_dir`` and write rollout_check.json into it.

    Args:
        run_dir: artifacts/RUN, with run.json and the stored trajectories of train/ and val/.
        all_reasons: Whether each of REACHABLE must occur.

    Raises:
        RecordError: there is no such run, or a file of it is damaged.
    """
    path = run_dir / RUN_FILE
    if not path.is_file():
        raise RecordError(f"run {run_dir}: no {RUN_FILE} in it; give artifacts/RUN of a run that has started")
    promises = read_promises(read_manifest(path))
    store = TrajectoryStore(run_dir)
    tally = _Tally(promises)
    for row in store:
        tally.add(row)
    check = tally.result([f"{torn.file}: {torn.what}" for torn in store.torn], all_reasons=all_reasons)
    write_atomically(run_dir / CHECK_FILE, to_json(check, indent=2) + b"\n")
    return check


class _Tally:
    """Counts and faults over the episodes of a run, one at a time."""

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._repeats = Repeats(promises)
        self._names: Counter[tuple[str, int, int]] = Counter()
        self._validated: Counter[tuple[int, int]] = Counter()
        """Episodes by step and attempt."""
        self._reasons: dict[TerminalReason, ReasonCount] = {
            reason: ReasonCount(episodes=0, generations=0, turns_max=0, model_tokens=0, response_tokens=0)
            for reason in TerminalReason
        }
        self._checked: Counter[str] = Counter()
        self._faults: dict[str, list[str]] = defaultdict(list)

    def add(self, row: Trajectory) -> None:
        """Count an episode and check it."""
        episode = row.episode
        self._names[row.uid, row.session_id, row.attempt_id] += 1
        if row.partition is Partition.VAL:
            self._validated[row.global_steps, row.attempt_id] += 1
        self._count(row)
        if row.run_id != self._promises.run_id:
            self._breach(_COMPLETE, name_of(row), [f"it is of run {row.run_id!r}"])
        is_fault = episode.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR
        self._record(_FAULTS, row, [episode.error or "no error named"] if is_fault else [])
        is_violation = episode.terminal_reason in PROTOCOL_VIOLATIONS or episode.protocol_violations != 0
        wrong = [f"it ended in {episode.terminal_reason}"] if is_violation and self._promises.is_constrained else []
        self._record(_VIOLATIONS, row, wrong)
        if is_fault:  # a fault leaves its last turn half-written; it is a breach already
            return
        for name, faults in ROW_CHECKS.items():
            self._record(name, row, _found(faults, row, self._promises))
        repeated = [*self._repeats.prompt_faults(row), *self._repeats.observation_faults(row)]
        self._record(_REPEATED, row, repeated)

    def result(self, torn: list[str], *, all_reasons: bool) -> RolloutCheck:
        """What was found, once all episodes were added."""
        self._close(torn)
        total = sum(self._names.values())
        return RolloutCheck(
            run_id=self._promises.run_id,
            max_response_length=self._promises.max_response_length,
            max_turns=self._promises.max_turns,
            num_trajectories=total,
            num_generations=sum(count.generations for count in self._reasons.values()),
            reasons=self._reasons,
            missing=tuple(reason for reason in REACHABLE if not self._reasons[reason].episodes),
            protocol_violations=sum(self._reasons[reason].episodes for reason in PROTOCOL_VIOLATIONS),
            invariants={
                name: Invariant(
                    checked=total if name == _COMPLETE else self._checked[name],
                    failures=len(self._faults[name]),
                    first=next(iter(self._faults[name]), None),
                )
                for name in (_COMPLETE, _FAULTS, _VIOLATIONS, *ROW_CHECKS, _REPEATED)
            },
            num_drops=self._repeats.num_drops,
            num_drops_proven=self._repeats.num_proven,
            wants_all_reasons=all_reasons,
        )

    def _close(self, torn: list[str]) -> None:
        """The faults that only all episodes together show."""
        for where, fault in self._repeats.drop_faults():
            self._breach(_REPEATED, where, [fault])
        for line in torn:
            self._breach(_COMPLETE, "store", [f"torn {line}"])
        for (uid, session_id, attempt_id), times in self._names.items():
            if times > 1:
                self._breach(_COMPLETE, f"{uid}_{session_id}_a{attempt_id}", [f"it is stored {times} times"])
        latest = {step: max(attempt for at, attempt in self._validated if at == step) for step, _ in self._validated}
        for step, attempt in sorted(latest.items()):
            found, wanted = self._validated[step, attempt], self._promises.num_val_episodes
            if found != wanted:
                self._breach(_COMPLETE, f"validation at step {step}", [f"{found} of {wanted} episodes are stored"])

    def _count(self, row: Trajectory) -> None:
        old, episode = self._reasons[row.episode.terminal_reason], row.episode
        self._reasons[episode.terminal_reason] = ReasonCount(
            episodes=old.episodes + 1,
            generations=old.generations + len(episode.generations),
            turns_max=max(old.turns_max, episode.num_turns),
            model_tokens=old.model_tokens + episode.model_tokens,
            response_tokens=old.response_tokens + episode.response_tokens,
        )

    def _record(self, name: str, row: Trajectory, faults: Iterable[str]) -> None:
        self._checked[name] += 1
        self._breach(name, name_of(row), faults)

    def _breach(self, name: str, where: str, faults: Iterable[str]) -> None:
        """One breach an episode and invariant, however much is wrong."""
        first = next(iter(faults), None)
        if first is not None:
            self._faults[name].append(f"{where}: {first}")


def _found(faults: Callable[[Trajectory, Promises], Iterator[str]], row: Trajectory, promises: Promises) -> list[str]:
    """What a check finds; a record that cannot be scored at all is a fault of that record."""
    try:
        return list(faults(row, promises))
    except RewardError as error:
        return [str(error)]
