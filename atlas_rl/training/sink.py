"""Where finished trajectories go: one writer a process, partition and step."""

import hashlib
import os
import socket
from pathlib import Path

from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.records.trajectory import Trajectory
from atlas_rl.records.vocabulary import Partition, TerminalReason


def keeps(uid: str, reason: TerminalReason, train_fraction: float) -> bool:
    """Whether a training row is stored: every row that did not submit, and the given share of uids.

    The share is decided by the uid's digest, so that all sessions of a question stay together and a rerun stores the
    same rows.
    """
    if reason is not TerminalReason.SUBMITTED:
        return True
    digest = hashlib.sha256(uid.encode()).digest()
    return int.from_bytes(digest[:8], "big") < train_fraction * 2**64


class TrajectorySink:
    """Writes trajectories under RUN/PARTITION/step_N/; opening another step of a partition closes the last one."""

    def __init__(self, run_folder: Path, train_fraction: float) -> None:
        self._run_folder = run_folder
        self._train_fraction = train_fraction
        self._writer_id = f"{socket.gethostname()}-{os.getpid()}"
        self._writers: dict[Partition, tuple[int, TrajectoryWriter]] = {}

    def write(self, trajectory: Trajectory) -> str | None:
        """Store a trajectory and return its sha256, or None if ``train_fraction`` leaves it out."""
        if trajectory.partition is Partition.TRAIN and not keeps(
            trajectory.uid, trajectory.episode.terminal_reason, self._train_fraction
        ):
            return None
        return self._writer(trajectory.partition, trajectory.global_steps).append(trajectory)

    def _writer(self, partition: Partition, step: int) -> TrajectoryWriter:
        open_step, writer = self._writers.get(partition, (None, None))
        if writer is None or open_step != step:
            if writer is not None:
                writer.close()
            writer = TrajectoryWriter(self._run_folder / partition / f"step_{step}", self._writer_id)
            self._writers[partition] = (step, writer)
        return writer
