"""What a rank tells the committing process through the folder that both see: its files are on disk, or why not."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from atlas_rl.checkpoint.durable import hand_over
from atlas_rl.checkpoint.layout import receipt_name
from atlas_rl.checkpoint.manifest import FileEntry, files_from_json, files_to_json
from atlas_rl.errors import TrainingError


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """One rank of one model has written its files of one step."""

    step: int
    model: str
    rank: int
    files: Mapping[str, FileEntry]
    """By path relative to the step's folder."""
    write_seconds: float
    """From the end of the snapshot until the disk had everything."""


def leave_receipt(partial: Path, receipt: Receipt) -> None:
    """Put a receipt where the committing process looks for it.

    Raises:
        TrainingError: the disk refused it.
    """
    content = {"step": receipt.step, "seconds": receipt.write_seconds, "files": files_to_json(receipt.files)}
    hand_over(partial / receipt_name(receipt.model, receipt.rank), json.dumps(content).encode("ascii"))


def leave_refusal(partial: Path, model: str, rank: int, error: str) -> None:
    """Tell the committing process that it need not wait for this rank.

    Raises:
        TrainingError: the disk refused it.
    """
    hand_over(partial / receipt_name(model, rank), json.dumps({"error": error}).encode("ascii"))


def take_receipt(partial: Path, model: str, rank: int) -> Receipt | None:
    """The receipt of a rank; None if it has left none yet.

    Raises:
        TrainingError: the rank could not write its files.
    """
    path = partial / receipt_name(model, rank)
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    if "error" in content:
        raise TrainingError(f"{model} rank {rank}: {content['error']}")
    files = files_from_json(content["files"])
    return Receipt(step=content["step"], model=model, rank=rank, files=files, write_seconds=content["seconds"])
