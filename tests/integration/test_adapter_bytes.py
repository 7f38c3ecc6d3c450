"""Adapters are a function of their seed: another process, with other hashes of strings, writes the same bytes."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from atlas_rl.adapters.init import init_adapters
from atlas_rl.models.tiny import build_tiny_model
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WRITE = (
    "import sys; from pathlib import Path; from atlas_rl.adapters.init import init_adapters\n"
    f"init_adapters(Path(sys.argv[1]), Path(sys.argv[2]), 4, 8, {TARGETS}, 11, base_fingerprint='f')"
)


def test_another_process_writes_the_same_bytes(tmp_path: Path):
    base, here, there = tmp_path / "base", tmp_path / "here", tmp_path / "there"
    rows = make_rows(UrnConfig(), 64, 7, "tokenizer-")
    build_tiny_model(base, benchmark=load_benchmark("urn"), rows=rows, seed=0)
    facts = init_adapters(base, here, 4, 8, TARGETS, 11, base_fingerprint="f")
    subprocess.run(
        [sys.executable, "-c", WRITE, str(base), str(there)],
        env={**os.environ, "PYTHONHASHSEED": "1"}, check=True, capture_output=True,
    )  # fmt: skip
    for kind, fact in facts.items():
        for name, digest in fact.files.items():
            assert hashlib.sha256((there / kind / name).read_bytes()).hexdigest() == digest, name
    assert (here / "init_report.json").read_bytes() == (there / "init_report.json").read_bytes()
