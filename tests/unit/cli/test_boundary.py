"""`atlas-rl demo boundary` prepares the stage once."""

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from atlas_rl.cli.boundary import prepare_boundary
from atlas_rl.data.parquet import read_rows

app = typer.Typer()
app.command("boundary")(prepare_boundary)


def test_questions_and_a_whole_model_are_there_and_a_second_call_leaves_them(tmp_path: Path) -> None:
    out = tmp_path / "stage"
    first = CliRunner().invoke(app, ["--out", str(out), "--longest-filler", "3"])
    assert first.exit_code == 0, first.output
    assert [len(row.candidates[0].reasoning) for row in read_rows(out / "rows.parquet")] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(path.name for path in out.iterdir()) == ["model", "rows.parquet"]
    assert json.loads((out / "model" / "config.json").read_text())["model_type"] == "qwen3"
    weights = (out / "model" / "model.safetensors").stat().st_mtime_ns
    second = CliRunner().invoke(app, ["--out", str(out)])
    assert second.output == f"{out}: already prepared\n"
    assert (out / "model" / "model.safetensors").stat().st_mtime_ns == weights
