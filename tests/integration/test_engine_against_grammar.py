"""The real engine's generations, read and replayed; and that the program which counts them can count a fault."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "scripts" / "bench" / "grammar_generations.py"
NUM_GENERATIONS = 300
pytestmark = pytest.mark.slow


def run(out: Path, *more: str) -> list[str]:
    """The program's lines; vLLM's environment stays in its process."""
    command = [sys.executable, str(PROGRAM), f"--generations={NUM_GENERATIONS}", "--batch=64", f"--out={out}", *more]
    finished = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, f"{finished.stdout[-2000:]}\n{finished.stderr[-4000:]}"
    return finished.stdout.splitlines()


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The generations under this project's scheduler."""
    out = tmp_path_factory.mktemp("generations") / "ours.jsonl"
    assert run(out)[-1] == f"generations: n={NUM_GENERATIONS} violations=0 disagreements=0"
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_every_generation_of_every_state_is_one_legal_call_or_a_cut(records: list[dict[str, Any]]) -> None:
    kinds = {
        state: {record["kind"] for record in records if record["state"] == state}
        for state in ("first", "open", "exhausted")
    }
    assert kinds == {
        "first": {"explore", "submit", "capped"},
        "open": {"explore", "submit", "capped"},
        "exhausted": {"submit", "capped"},
    }
    assert len({record["seed"] for record in records}) == NUM_GENERATIONS
    assert all(len(record["token_ids"]) <= record["max_tokens"] for record in records)


def test_vllm_alone_samples_the_same_tokens_from_the_same_seeds(records: list[dict[str, Any]], tmp_path: Path) -> None:
    assert run(tmp_path / "theirs.jsonl", "--masks=vllm")[-1].endswith("violations=0 disagreements=0")
    theirs = [json.loads(line) for line in (tmp_path / "theirs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert theirs == records


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The program as a module."""
    sys.path.insert(0, str(PROGRAM.parent))
    import grammar_generations

    return grammar_generations


@pytest.fixture(scope="module")
def surface(program: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A benchmark on a tokenizer of its own."""
    from atlas_rl.models.tiny import build_tiny_model
    from atlas_rl.tasks.benchmark import load_benchmark

    benchmark = load_benchmark("gsm8k").model_copy(update={"max_text_tokens": 3})
    folder = tmp_path_factory.mktemp("surface") / "model"
    build_tiny_model(folder, benchmark=benchmark, rows=program.made_up_rows("gsm8k", 50))
    return program.surface_of(benchmark, folder)


CALL = '\n{"name": "submit", "arguments": {"answer": "12"}}\n'


@pytest.mark.parametrize(
    ("text", "call", "cap", "kind", "is_fault", "is_difference"),
    [
        ("ab", CALL, 99, "submit", False, False),
        ("ab", CALL, 0, "capped", False, False),
        ("ab", None, 99, "None", True, True),
        ("abababab", CALL, 99, "submit", False, True),
        ("", CALL.replace("submit", "explode"), 99, "explode", True, True),
        ("", CALL.replace('"12"', '"1,2,"'), 99, "submit", False, False),
        ("", CALL.replace('"12"', '"+1"'), 99, "submit", True, True),
    ],
    ids=["legal", "cut", "no_call", "too_much_text", "unknown_tool", "odd_but_legal", "wrong_argument"],
)
def test_what_is_not_legal_is_counted(
    text: str,
    call: str | None,
    cap: int,
    kind: str,
    is_fault: bool,
    is_difference: bool,
    program: ModuleType,
    surface: Any,
) -> None:
    encode, tokens = surface.template.encode_text, surface.tokens
    ids = [token for letter in text for token in encode(letter)]
    if call is not None:
        ids += [tokens.call_begin_id, *encode(call), tokens.call_end_id]
    ids.append(tokens.end_of_turn_id)
    max_tokens = cap or len(ids) - 4
    ids = ids[:max_tokens]
    sampled = program.Sampled(token_ids=tuple(ids), logprobs=(0.0,) * len(ids), weight_version=0, num_cached_tokens=0)
    ask = program.Ask(index=0, state=program.EpisodeState.OPEN, max_tokens=max_tokens, seed=0)
    verdict = program.judge(ask, sampled, surface)
    assert (verdict.kind, bool(verdict.fault), bool(verdict.difference)) == (kind, is_fault, is_difference)


@pytest.mark.filterwarnings("ignore")  # vLLM's and verl's imports warn
def test_requests_of_the_benchmarks_are_those_of_the_runtime(program: ModuleType) -> None:
    import atlas_rl.training.plugin  # noqa: F401
    from atlas_rl.records.episode import Sampling
    from atlas_rl.runtime.generate import GenerateRequest
    from atlas_rl.training.generate import sampling_params

    request = GenerateRequest(
        request_id="r", prompt_ids=(1,), max_tokens=9, structural_tag="{}",
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=-1, seed=4),
    )  # fmt: skip
    fields = program.bench_model.request_fields(max_tokens=9, seed=4, structural_tag="{}")
    assert fields.pop("logprobs") == 0
    params = sampling_params(request)
    assert params.pop("logprobs") is True  # verl's server turns it into 0
    assert fields == params
