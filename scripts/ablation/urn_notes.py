"""The table of the notes ablation: wrong notes, entropy and utility by step, mean and range over the seeds of a mode.

Usage: python scripts/ablation/urn_notes.py --out FOLDER artifacts/RUN...
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atlas_rl.errors import AtlasError, ConfigError, RecordError
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.models.folder import load_tokenizer
from atlas_rl.records.vocabulary import Partition
from atlas_rl.reporting.manifest import read_manifest
from atlas_rl.reporting.notes import read_notes
from atlas_rl.reporting.notes_table import NotesRun, markdown, merge, mode_and_seed, write_csv
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.notes import NOTES, Note


def read_run(run: Path, note: Note) -> NotesRun:
    """One run, its texts decoded with the tokenizer that it was started with.

    Raises:
        RecordError: there is no such run, or it cannot be read.
        ConfigError: the model folder that it was started with is gone.
    """
    if not (run / "run.json").is_file():
        raise RecordError(f"run {run}: no run.json there; give artifacts/RUN of a run that has started")
    manifest = read_manifest(run / "run.json")
    mode, seed = mode_and_seed(manifest)
    tokenizer: Any = load_tokenizer(Path(manifest.config["actor_rollout_ref"]["model"]["path"]))
    decode = partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    call_begin_id = ProtocolTokens.from_tokenizer(tokenizer).call_begin_id
    steps = read_notes(
        run, call_begin_id=call_begin_id, decode=lambda token_ids: str(decode(list(token_ids))), note=note
    )
    return NotesRun(mode=mode, seed=seed, run_id=manifest.run_id, steps=tuple(steps))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the two tables and write the CSV files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="artifacts/RUN")
    parser.add_argument("--out", required=True, type=Path, help="folder of the CSV files")
    parser.add_argument("--benchmark", default="urn_notes", help="whose notes are the right ones")
    given = parser.parse_args(arguments)
    name = load_benchmark(given.benchmark).note
    if name is None:
        raise ConfigError(f"benchmark {given.benchmark!r} has no notes; give --benchmark of the runs")
    runs = [read_run(run, NOTES[name]) for run in given.runs]
    merged = merge(runs)
    for title, which in (("Training", Partition.TRAIN), ("Validation", Partition.VAL)):
        print(f"{title}, mean (lowest to highest) over the seeds:\n")
        print("\n".join(markdown(merged, which)) + "\n")
    for path in write_csv(given.out, runs, merged):
        print(path)


if __name__ == "__main__":
    try:
        main()
    except AtlasError as error:
        sys.exit(f"{type(error).__name__}: {error}")
