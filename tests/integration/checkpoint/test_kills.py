"""A kill at any moment of a save leaves the step before or the new one, whole; so does a loss of power."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_states import save_step

ROOT = Path(__file__).parents[3]


def run(*command: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_twenty_kills_at_random_moments_leave_nothing_that_cannot_be_loaded() -> None:
    printed = run("scripts/bench/checkpoint_kills.py", "--kills", "20", "--longest-life", "0.4")
    assert printed.splitlines()[0] == "kills: n=20 unloadable=0"


def test_a_kill_before_each_act_on_the_file_system_leaves_the_old_step_or_the_new_one() -> None:
    results = json.loads(run(str(Path(__file__).parent / "crash_points.py")))
    acts = [result["act"].split()[0] for result in results]
    assert acts.count("os.rename") == 4  # the receipt, the step, latest, and the step that is not kept
    assert len(acts) > 40
    for result in results:
        assert result["killed"], result
        assert result["step"] in (3, 4), result
        assert result["is_exact"], result
        assert result["kept_exact"], result
        assert result["named"] == f"global_step_{result['step']}", result
        assert result["leftovers"] == 0, result
    steps = [result["step"] for result in results]
    committed = steps.index(4)
    assert steps == [3] * committed + [4] * (len(steps) - committed)
    assert results[committed - 1]["act"].startswith("os.rename ")
    assert ".global_step_4.partial-" in results[committed - 1]["act"]


def test_everything_is_on_the_disk_before_anything_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def seen_fsync(handle: int) -> None:
        acts.append(("sync", str(Path(f"/proc/self/fd/{handle}").readlink())))
        fsync(handle)

    def seen_replace(source: Path, target: Path) -> None:
        acts.append(("rename", str(source)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    final = save_step(tmp_path, 1)
    renamed = [(place, Path(path)) for place, (act, path) in enumerate(acts) if act == "rename"]
    (commit, partial), (name_latest, _) = [(place, path) for place, path in renamed if path.parent == tmp_path]
    synced_before = {path for act, path in acts[:commit] if act == "sync"}
    inside = [partial / path.relative_to(final) for path in final.rglob("*")]
    assert len(inside) == 23 + 6
    assert {str(path) for path in (partial, *inside)} <= synced_before
    assert commit < name_latest
    assert ("sync", str(tmp_path)) in acts[commit:name_latest]
    assert ("sync", str(tmp_path / ".latest.new")) in acts[commit:name_latest]
    assert ("sync", str(tmp_path)) in acts[name_latest:]
