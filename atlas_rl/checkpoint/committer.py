"""Saving, as the one process does it that drives the run: begin a step, and commit it once every rank has written."""

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from atlas_rl.checkpoint.background import Background
from atlas_rl.checkpoint.durable import OpenFile, create, make_folder, rename, replace_file, sync_folders, write_file
from atlas_rl.checkpoint.identity import RunIdentity
from atlas_rl.checkpoint.latest import latest_step
from atlas_rl.checkpoint.layout import (
    LATEST,
    MANIFEST,
    RECEIPTS,
    RUN,
    abandoned_name,
    committed_steps,
    partial_name,
    read_latest,
    receipt_name,
    step_name,
    step_of,
    step_of_partial,
)
from atlas_rl.checkpoint.lock import FolderLock
from atlas_rl.checkpoint.manifest import FileEntry, Manifest, encode_manifest
from atlas_rl.checkpoint.reading import StepFiles
from atlas_rl.checkpoint.receipt import Receipt, take_receipt
from atlas_rl.checkpoint.retention import check_anchor_every, remove_leftovers, remove_surplus
from atlas_rl.checkpoint.snapshot import HostBuffers, Snapshot
from atlas_rl.checkpoint.state import RunState, run_parts
from atlas_rl.errors import ConfigError, TrainingError

_logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often the committing thread looks for receipts."""


class StepCommitter:
    """The only writer of a folder of checkpoints but for the ranks' own files; one thread calls it.

    The folder must be one that this process and all ranks see.
    """

    def __init__(
        self,
        folder: Path,
        *,
        identity: RunIdentity,
        code_version: str,
        anchor_every: int | None,
        patience_seconds: float = 1800.0,
        open_file: OpenFile = create,
    ) -> None:
        """Take the folder, creating it, and remove what a killed process left in it.

        Args:
            folder: CHECKPOINTS.
            identity: Of the run.
            code_version: Told apart by the caller, for example a git commit; goes into the manifest.
            anchor_every: Steps that are multiples of it stay for good; None: only the latest stays.
            patience_seconds: How long a step may wait for its last rank before the run is told.
            open_file: Creates the files; for tests.

        Raises:
            ConfigError: another process holds the folder, or ``anchor_every`` is less than 1.
            TrainingError: the folder cannot be made.
        """
        check_anchor_every(anchor_every)
        make_folder(folder)
        self.folder = folder
        self.identity = identity
        self._code_version = code_version
        self._anchor_every = anchor_every
        self._patience_seconds = patience_seconds
        self._open_file = open_file
        self._buffers = HostBuffers()
        self._committing: Background[Path] | None = None
        self._lock = FolderLock(folder)
        remove_leftovers(folder)

    def last_step(self) -> Path | None:
        """The folder of the step to resume from, every file of it checked; None if there is none.

        If the process before was killed between giving a step its name and naming it in `latest`, this names it.

        Raises:
            TrainingError: the newest step is damaged (``latest.latest_step``).
        """
        found = latest_step(self.folder)
        if found is not None and read_latest(self.folder) != step_of(found):
            self._point_latest(step_of(found))
            _logger.warning("%s: complete, but not yet named in %r; named now", found, LATEST)
        return found

    def begin(self, step: int) -> Path:
        """Make the folder that the ranks write a step into; give it to ``RankWriter.save`` and ``commit``.

        Raises:
            ConfigError: that step or a later one is committed already.
            TrainingError: the folder cannot be made.
        """
        newest = max(committed_steps(self.folder), default=-1)
        if step <= newest:
            raise ConfigError(
                f"{self.folder}: step {step} cannot be saved, {step_name(newest)} is there; resume from that one, or "
                f"rewind to an earlier one first"
            )
        partial = self.folder / partial_name(step)
        make_folder(partial / RECEIPTS)
        make_folder(partial / RUN)
        return partial

    def commit(self, partial: Path, state: RunState) -> None:
        """Take the run's own state, and commit the step in a thread as soon as every rank has left its receipt.

        Args:
            partial: The folder that ``begin`` returned.
            state: May change as soon as this returns.

        Raises:
            TrainingError: the step before could not be committed, the state cannot be saved, or is of another step.
        """
        step = step_of_partial(partial)
        if state.global_step != step:
            raise TrainingError(
                f"{partial}: begun for step {step}, the run's state is of step {state.global_step}; a bug"
            )
        self.wait()
        snapshot = self._buffers.snapshot(run_parts(state))
        self._committing = Background(f"commit step {step}", lambda: self._commit(partial, step, snapshot))

    def wait(self) -> Path | None:
        """Wait until the last step is committed and return its folder; None if there is nothing to wait for.

        Raises:
            TrainingError: it could not be committed; said once.
        """
        committing, self._committing = self._committing, None
        return None if committing is None else committing.outcome()

    def rewind(self, step: int) -> list[Path]:
        """Make an earlier step the latest, so that a run can go on from it; later steps are set aside, not removed.

        Returns:
            The folders that hold the later steps now; they are the user's to remove.

        Raises:
            TrainingError: that step is missing or damaged, or the disk refused.
        """
        self.wait()
        StepFiles(self.folder / step_name(step)).verify()
        self._point_latest(step)
        aside = []
        for later in (one for one in committed_steps(self.folder) if one > step):
            aside.append(self.folder / abandoned_name(later))
            rename(self.folder / step_name(later), aside[-1])
            _logger.warning("%s: later than step %s, which the run goes on from; now %s", later, step, aside[-1].name)
        return aside

    def close(self) -> None:
        """Wait for the last step and let the folder go.

        Raises:
            TrainingError: the last step could not be committed.
        """
        try:
            self.wait()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        """The committer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; after an exception, without waiting for a step whose ranks may be gone.

        If that step is still being committed, the lock stays until the process ends.
        """
        if error is None:
            self.close()
        elif self._committing is None or self._committing.is_done:
            self._lock.release()

    def _commit(self, partial: Path, step: int, snapshot: Snapshot) -> Path:
        begin = time.perf_counter()
        files = snapshot.write(partial, self._open_file)
        for receipt in self._receipts(partial):
            files |= receipt.files
        self._write_manifest(partial, step, files)
        final = self.folder / step_name(step)
        rename(partial, final)
        self._point_latest(step)
        _logger.info(
            "%s: committed, %d bytes in %d files, %.1f s after it was begun",
            final, sum(entry.size for entry in files.values()), len(files), time.perf_counter() - begin,
        )  # fmt: skip
        remove_surplus(self.folder, step, self._anchor_every)
        return final

    def _receipts(self, partial: Path) -> list[Receipt]:
        """The receipts of all ranks, in order.

        Raises:
            TrainingError: a rank could not write, or left no receipt in time.
        """
        deadline = time.monotonic() + self._patience_seconds
        missing = [(m, rank) for m, identity in self.identity.models.items() for rank in range(identity.world_size)]
        found: dict[tuple[str, int], Receipt] = {}
        while True:
            for model, rank in missing:
                receipt = take_receipt(partial, model, rank)
                if receipt is not None:
                    found[model, rank] = receipt
            missing = [one for one in missing if one not in found]
            if not missing:
                return [found[one] for one in sorted(found)]
            if time.monotonic() > deadline:
                model, rank = missing[0]
                raise TrainingError(
                    f"{partial}: {model} rank {rank} (of {len(missing)} missing) has written nothing for "
                    f"{self._patience_seconds:.0f} s, so the step is not committed; look into that rank's log"
                )
            time.sleep(POLL_SECONDS)

    def _write_manifest(self, partial: Path, step: int, files: Mapping[str, FileEntry]) -> None:
        for model, identity in self.identity.models.items():
            for rank in range(identity.world_size):
                (partial / receipt_name(model, rank)).unlink()
        (partial / RECEIPTS).rmdir()
        manifest = Manifest(
            step=step,
            identity=self.identity,
            code_version=self._code_version,
            written_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            files=dict(sorted(files.items())),
        )
        write_file(partial / MANIFEST, [encode_manifest(manifest)], self._open_file)
        sync_folders(partial / RUN, *(partial / model for model in self.identity.models), partial)

    def _point_latest(self, step: int) -> None:
        replace_file(self.folder / LATEST, f"{step_name(step)}\n".encode("ascii"), self._open_file)
