"""The script that makes the ablation's table, on runs whose texts are real tokens."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from record_builders import GLUE, SAMPLED, trajectory
from script_modules import load_script

from atlas_rl.errors import ConfigError, RecordError
from atlas_rl.models.demonstrations import Protocol
from atlas_rl.records.store import TrajectoryWriter
from atlas_rl.reporting.manifest import PotentialBinding, build_manifest, open_run


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("ablation/urn_notes.py")


def stored_run(run: Path, protocol: Protocol, model_dir: Path, logprobs: str, *texts: str) -> Path:
    """A run of one episode that writes ``texts`` before its calls and sees a B in every explore."""
    config: dict[str, Any] = {
        "atlas": {"policy": {"logprobs": logprobs, "train_forced_tokens": True}, "run": {"seed": 0}},
        "actor_rollout_ref": {"model": {"path": str(model_dir)}},
    }
    potential = PotentialBinding(name="zero", sha256="0" * 64)
    manifest = build_manifest(run.name, config, potential=potential, grammar_hashes={}, protocol_token_ids={})
    open_run(run, manifest, resume=False)
    ids: list[int] = []
    for text in texts:
        turn = [*protocol.template.encode_text(text), protocol.tokens.call_begin_id]
        ids += [*turn, *[protocol.tokens.end_of_turn_id] * (SAMPLED - len(turn)), *[0] * GLUE]
    row = trajectory(run.name, explores=len(texts) - 1)
    with TrajectoryWriter(run / "train", "w") as writer:
        writer.append(row.model_copy(update={"response_ids": tuple(ids[: len(row.response_ids)])}))
    return run


def test_the_script_prints_both_tables_and_writes_the_files(
    tmp_path: Path, protocol: Protocol, small_dir: Path, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    right = stored_run(tmp_path / "right", protocol, small_dir, "grammar", "", "B", "BB")
    wrong = stored_run(tmp_path / "wrong", protocol, small_dir, "full_vocab", "", "A", "BB")
    script.main(["--out", str(tmp_path / "table"), str(right), str(wrong)])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:5] for line in printed if " | 1 | 1 | " in line] == [
        ["| grammar", "1", "1", "0 (0 to 0)", "0 (0 to 0)"],
        ["| full_vocab", "1", "1", "1 (1 to 1)", "0.3333 (0.333 to 0.333)"],
    ]
    assert [line for line in printed if line.startswith(("Training", "Validation"))] == [
        "Training, mean (lowest to highest) over the seeds:",
        "Validation, mean (lowest to highest) over the seeds:",
    ]
    assert printed[-2:] == [str(tmp_path / "table" / f"notes_by_{name}.csv") for name in ("run", "mode")]
    assert all(Path(line).is_file() for line in printed[-2:])


def test_a_benchmark_without_notes_is_refused(tmp_path: Path, script: ModuleType) -> None:
    with pytest.raises(ConfigError, match="benchmark 'urn' has no notes"):
        script.main(["--out", str(tmp_path), "--benchmark", "urn", str(tmp_path)])


def test_a_folder_that_is_no_run_is_refused_by_name(tmp_path: Path, script: ModuleType) -> None:
    with pytest.raises(RecordError, match=r"none: no run\.json there"):
        script.main(["--out", str(tmp_path), str(tmp_path / "none")])
