"""``atlas-rl grammar check`` on a small tokenizer, and the files that it keeps."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from start_of_a_run import model_folder, save_tokenizer
from typer.testing import CliRunner, Result

from atlas_rl.cli.grammar_check import CASES
from atlas_rl.cli.grammar_report import GrammarReport, write_tags
from atlas_rl.cli.main import app
from atlas_rl.errors import ConfigError
from atlas_rl.grammar.cases import load_cases
from atlas_rl.tasks.benchmark import load_benchmark

ROOT = Path(__file__).parents[3]
CASE = {"id": "c", "where": ["letter"], "write": [{"call": "submit"}, {"id": "end_of_turn"}], "legal": True}
LETTER = {"letter": {"text": None, "answer": {"enum": ["A", "B"]}}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tokenizer(folder)
    return folder


def check(model: Path, *options: str, benchmark: str = "urn") -> Result:
    return CliRunner().invoke(app, ["grammar", "check", "--model", str(model), "--benchmark", benchmark, *options])


def case_file(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump({"surfaces": LETTER, "cases": [CASE]} | changes))
    return path


@pytest.mark.parametrize("benchmark", ["urn", "gsm8k", "urn_boundary"])
def test_every_case_passes_and_the_last_line_says_so(benchmark: str, model: Path) -> None:
    result = check(model, benchmark=benchmark)
    lines = result.output.splitlines()
    assert (result.exit_code, lines[-1]) == (0, "grammar: cases=376 passed=376 states=3")
    assert [line.split(":")[0] for line in lines if line.startswith("state ")] == [
        "state first",
        "state open",
        "state exhausted",
    ]


def test_the_states_are_printed_with_hash_longest_call_and_rungs(model: Path) -> None:
    lines = check(model, "--max-text-tokens", "4").output.splitlines()
    report = GrammarReport(model, load_benchmark("urn"), max_text_tokens=4)
    rows = max(report.protocol.tokenizer.get_vocab().values()) + 1
    assert lines[0] == f"urn on {model}: {rows + 8} rows, {rows} tokens"
    grammar = report.grammar["open"]  # type: ignore[index]
    (opened,) = [line for line in lines if line.startswith("state open: ")]
    assert opened.startswith(f"state open: {grammar.sha256}, explore and submit, text up to 4 tokens, call of ")
    assert f" to {grammar.max_call_tokens} tokens, compiled in " in opened
    rungs = [line.split(":")[0].strip() for line in lines if line.startswith("  open/")]
    assert rungs == ["open/text_2", "open/text_1", "open/text_0"]


def test_the_head_of_a_model_may_have_more_rows_than_its_tokenizer(tmp_path: Path) -> None:
    folder = Path(model_folder(tmp_path / "model", vocab_size=512))
    save_tokenizer(folder)
    assert check(folder).output.splitlines()[0].startswith(f"urn on {folder}: 512 rows, ")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"legal": False}, "letter: c, state open, tokens: accepted: True"),
        ({"reads": "no_call"}, "letter: c, state open, reading: reads runs, not no_call: "),
        ({"reads": "runs", "arguments": {"answer": "B"}}, "reading: arguments {'answer': 'A'}, not {'answer': 'B'}"),
        ({"reads": "runs", "reason": "because"}, "reading: the reason is '', without 'because'"),
        (
            {
                "write": [{"call": "submit"}],
                "legal": None,
                "next": {"must_not": ["end_of_turn"], "may": ["call_begin"]},
            },
            "next token: wrong about end_of_turn, call_begin",
        ),
        (
            {"write": ["</tool_call>", {"id": "call_end"}], "legal": None, "next": {"only": ["end_of_turn"]}},
            "next token: the beginning is not accepted",
        ),
    ],
)
def test_a_case_that_does_not_hold_is_named_and_exits_with_1(
    change: dict[str, Any], fault: str, model: Path, tmp_path: Path
) -> None:
    result = check(model, "--cases", str(case_file(tmp_path / "cases.yaml", cases=[CASE | change])))
    assert result.exit_code == 1
    assert any(line.startswith("FAILED letter: c, state ") and fault in line for line in result.output.splitlines())
    looked_at = 3 * sum((CASE | change).get(key) is not None for key in ("legal", "reads", "next"))
    assert result.output.splitlines()[-1].startswith(f"grammar: cases={looked_at} passed=")


def test_a_schema_that_is_not_refused_is_a_failure(model: Path, tmp_path: Path) -> None:
    refused = [{"answer": {"enum": ["A"]}, "say": "x"}, {"answer": {"type": "string"}, "say": "a pattern or an enum"}]
    result = check(model, "--cases", str(case_file(tmp_path / "cases.yaml", refused_schemas=refused)))
    assert 'FAILED schema {"enum": ["A"]}: not refused' in result.output
    assert result.output.splitlines()[-1] == "grammar: cases=5 passed=4 states=3"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no YAML: "),
        (
            "surfaces: {}\ncases: [{id: a, where: [x], write: [7]}]",
            "cases.0.write.0.str: Input should be a valid",
        ),
        ("surfaces: {}\ncases: [{id: a, where: [x], write: []}]", "cases name surfaces ['x']; describe them under"),
        ("surfaces: {}\ncases: [{id: a, where: [], write: [], wrote: 1}]", "cases.0.wrote: Extra inputs are not"),
    ],
)
def test_a_file_that_holds_no_cases_is_refused_in_one_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_cases(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_written_on_a_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    path = case_file(tmp_path / "cases.yaml", cases=[CASE | {"write": [{"id": "call_middle"}]}])
    result = check(model, "--cases", str(path))
    assert str(result.exception) == (
        "case 'c': cannot write {'id': 'call_middle'} on this tokenizer; see docs/grammar.md"
    )


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    assert str(check(tmp_path).exception).startswith(f"--model={tmp_path}: no tokenizer there ")


def test_written_tags_are_what_the_hashes_are_of(model: Path, tmp_path: Path) -> None:
    assert check(model, "--write", str(tmp_path)).exit_code == 0
    (folder,) = (tmp_path / "urn").iterdir()
    index = json.loads((folder / "index.json").read_text())
    for state in ("first", "open", "exhausted"):
        assert hashlib.sha256((folder / f"{state}.json").read_bytes()).hexdigest() == index["sha256"][state]
    assert folder.name == f"{model.name}-{index['tokenizer_sha256'][:8]}"


@pytest.mark.parametrize("index", sorted((ROOT / "grammar" / "tags").glob("*/*/index.json")), ids=str)
def test_the_kept_tags_are_whole(index: Path) -> None:
    hashes = json.loads(index.read_text())["sha256"]
    for state in ("first", "open", "exhausted"):
        assert hashlib.sha256((index.parent / f"{state}.json").read_bytes()).hexdigest() == hashes[state]


@pytest.mark.parametrize("benchmark", ["urn", "gsm8k"])
def test_the_kept_tags_of_the_real_qwen3_tokenizer_are_those_of_today(benchmark: str, tmp_path: Path) -> None:
    folder = os.environ.get("ATLAS_QWEN3_TOKENIZER")
    if not folder:
        pytest.skip("set ATLAS_QWEN3_TOKENIZER to a folder with Qwen3's tokenizer.json and tokenizer_config.json")
    written = write_tags(tmp_path, GrammarReport(Path(folder), load_benchmark(benchmark)))
    digest = json.loads((written / "index.json").read_text())["tokenizer_sha256"]
    (kept,) = (ROOT / "grammar" / "tags" / benchmark).glob(f"*-{digest[:8]}")
    for file in written.iterdir():
        assert file.read_bytes() == (kept / file.name).read_bytes(), file.name


def test_every_shared_case_of_grammar_and_calls_is_looked_at_somewhere(shared: Path) -> None:
    cases = [json.loads(line) for line in (shared / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
    kinds = {"grammar", "grammar_config", "tool_call_parse"}
    wanted = {case["id"] for case in cases if case["kind"] in kinds}
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "unit").rglob("test_*.py"))
    looked_at = {name for name in wanted if name in CASES.read_text(encoding="utf-8") or f"# {name}" in tests}
    assert len(wanted) >= 11
    assert looked_at == wanted
