"""Who may import whom: the table of docs/architecture.md as data, held against the code."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "atlas_rl"
MAX_MODULE_LINES = 400

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "records": {"errors"},
    "grading": {"errors", "records"},
    "tasks": {"errors", "records", "grading"},
    "grammar": {"errors", "records", "tasks"},
    "runtime": {"errors", "records", "grading", "tasks", "grammar"},
    "rewards": {"errors", "records"},
    "objective": {"errors"},
    "checkpoint": {"errors"},
    "adapters": {"errors", "checkpoint"},
    "data": {"errors", "records", "grading", "tasks"},
    "models": {"errors", "records", "grading", "tasks", "grammar", "runtime", "data"},
    "reporting": {"errors", "records", "rewards"},
    "training": {
        "errors", "records", "grading", "tasks", "grammar", "runtime", "rewards", "objective", "checkpoint",
        "adapters", "data", "reporting",
    },
    "cli": {
        "errors", "records", "grading", "tasks", "grammar", "runtime", "rewards", "objective", "checkpoint",
        "adapters", "data", "models", "reporting", "training",
    },
}  # fmt: skip
"""Rooms in the order in which they build on each other, and what each may import of the others."""

ONLY_IN: dict[str, set[str]] = {
    "verl": {"training"},
    "ray": {"training"},
    "vllm": {"training"},
    "transfer_queue": {"training"},
    "tensordict": {"training"},
    "peft": {"adapters", "training"},
    "torch": {"objective", "checkpoint", "adapters", "models", "training"},
    "safetensors": {"checkpoint", "adapters"},
    "transformers": {"adapters", "models", "training", "cli"},
    "xgrammar": {"grammar"},
    "math_verify": {"grading"},
    "hydra": {"cli"},
    "typer": {"cli"},
}
"""Libraries that shape whatever they touch, and the rooms that may know them."""

LIGHT_ROOMS = ("records", "grammar", "runtime", "rewards")
HEAVY_LIBRARIES = {"torch", "verl", "transformers", "vllm", "ray"}


def _modules(room: str) -> list[Path]:
    alone = PACKAGE / f"{room}.py"
    return [alone] if alone.exists() else sorted((PACKAGE / room).rglob("*.py"))


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def _imports(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and dotted name, split, of every import of a module: those inside functions and for types too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write atlas_rl.ROOM.MODULE"
            assert node.module is not None
            named = [alias.name for alias in node.names]
            yield from ((node.lineno, [*node.module.split("."), name]) for name in named)


def test_every_module_belongs_to_a_room_of_the_table() -> None:
    found = {_room(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert found == set(MAY_IMPORT)


def test_rooms_build_only_on_rooms_above_them_in_the_table() -> None:
    above: set[str] = set()
    for room, allowed in MAY_IMPORT.items():
        assert allowed <= above, f"{room} builds on {sorted(allowed - above)}, listed below it"
        above.add(room)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_the_table_lets_it(room: str) -> None:
    allowed = MAY_IMPORT[room] | {room}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports atlas_rl.{name[1]}"
        for path in _modules(room)
        for line, name in _imports(path)
        if name[0] == "atlas_rl" and name[1] not in allowed
    ]
    assert wrong == [], f"{room} may import {sorted(MAY_IMPORT[room])}; another arrow needs a decision note"


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_that_shapes_code_stays_in_its_rooms(library: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if _room(path) not in ONLY_IN[library]
        for line, name in _imports(path)
        if name[0] == library
    ]
    assert wrong == [], f"{library} is for {sorted(ONLY_IN[library])} only"


def test_nothing_but_cli_imports_training() -> None:
    importers = {
        _room(path)
        for path in PACKAGE.rglob("*.py")
        for _, name in _imports(path)
        if name[:2] == ["atlas_rl", "training"]
    }
    assert importers - {"training"} <= {"cli"}


@pytest.mark.parametrize("room", LIGHT_ROOMS)
def test_a_light_room_loads_no_heavy_library_in_a_fresh_interpreter(room: str) -> None:
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in _modules(room)]
    script = f"import sys, {', '.join(name.removesuffix('.__init__') for name in names)}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert HEAVY_LIBRARIES.isdisjoint(run.stdout.split())


def test_every_init_file_is_empty() -> None:
    assert [str(path) for path in PACKAGE.rglob("__init__.py") if path.read_bytes()] == []


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_test_files_have_names_of_their_own() -> None:
    names = sorted(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, same in groupby(names) if len(list(same)) > 1] == []


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for top in (PACKAGE, ROOT / "tests")
        for path in sorted(top.rglob("*.py"))
    }
    assert {path: lines for path, lines in lengths.items() if lines > MAX_MODULE_LINES} == {}
