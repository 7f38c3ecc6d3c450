"""What a person sees of a run that cannot start: one line, an exit code, and nothing started or written."""

import subprocess
import sys
from pathlib import Path

from atlas_rl.data.parquet import write_rows
from atlas_rl.models.tokenizer import train_tokenizer
from atlas_rl.tasks.urn import UrnConfig, make_rows

CONFIG = '{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 512, "max_position_embeddings": 2048}'
HEADER = b'{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}'


def train(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run the command line in an empty folder; return its exit code and the lines that it printed."""
    command = [sys.executable, "-m", "atlas_rl.cli.train", "experiment=urn_demo", "atlas.run.id=r", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout == ""
    assert not (folder / "artifacts").exists()
    assert not (folder / "logs").exists()
    assert not list(folder.glob("*.log"))
    return done.returncode, done.stderr.splitlines()


def inputs(folder: Path) -> list[str]:
    """A dataset and a model folder that only its weights' values keep from being trained."""
    rows = make_rows(UrnConfig(), 20, seed=0, id_prefix="q")
    write_rows(rows, "urn", folder / "rows.parquet")
    tokenizer = train_tokenizer(['\n{"name": "explore", "arguments": {}}\n'], vocab_size=300)
    tokenizer.save_pretrained(str(folder / "model"))
    (folder / "model" / "config.json").write_text(CONFIG)
    (folder / "model" / "model.safetensors").write_bytes(len(HEADER).to_bytes(8, "little") + HEADER + bytes(8))
    files = ["data.train_files=rows.parquet", "data.val_files=rows.parquet"]
    return [*files, "actor_rollout_ref.model.path=model"]


def test_a_word_without_a_value_is_a_wrong_use(tmp_path: Path) -> None:
    assert train(tmp_path, "data.seed") == (
        2,
        ["UsageError: argument 'data.seed': missing EQUAL at '<EOF>'; write key=value"],
    )


def test_an_unknown_key_of_ours_and_a_missing_value_are_one_line_each(tmp_path: Path) -> None:
    assert train(tmp_path, "data.train_files=a", "data.val_files=b") == (
        1,
        [
            "ConfigError: actor_rollout_ref.model.path must be set; give actor_rollout_ref.model.path=VALUE, or an "
            "experiment=NAME that sets it"
        ],
    )
    given = ["data.train_files=a", "data.val_files=b", "actor_rollout_ref.model.path=c", "atlas.runtime.max_turn=3"]
    code, lines = train(tmp_path, *given)
    assert (code, lines) == (
        1,
        ["ConfigError: unknown key atlas.runtime.max_turn; did you mean atlas.runtime.max_turns?"],
    )


def test_a_prompt_over_the_limit_stops_before_anything_starts(tmp_path: Path) -> None:
    code, lines = train(tmp_path, *inputs(tmp_path))
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("DataError: rows.parquet row 0: its prompt has ")
    assert lines[0].endswith("that are over it: no prompt is truncated")
