"""The script that makes the rewards ablation's table: what it calls broken."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from script_modules import load_script

from atlas_rl.errors import RecordError
from atlas_rl.reporting.manifest import PotentialBinding, build_manifest, open_run
from atlas_rl.reporting.summary import Estimate


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("ablation/urn_rewards.py")


def run(script: ModuleType, price: float, explores: float, **changes: Any) -> Any:
    estimate = Estimate(mean=0.5, standard_error=0.01, count=512)
    values: dict[str, Any] = {
        "preset": f"at {price}", "potential": "zero", "price": price, "steps": 20, "worst_invariant": 0.0,
        "explores": (2.0, explores), "utility": (estimate, estimate), "fixed": 0.5, "optimum": 0.6,
    }  # fmt: skip
    return script.RewardRun(**{**values, **changes})


def test_dearer_explores_must_be_fewer_under_the_same_potential(script: ModuleType) -> None:
    cheap, middle, dear = run(script, 0.01, 1.5), run(script, 0.08, 1.0), run(script, 0.1, 0.9)
    assert script.broken_promises([dear, cheap, middle]) == []
    (broken,) = script.broken_promises([cheap, middle, run(script, 0.1, 1.25)])
    assert broken == "zero: 1.250 explores at 0.1 each, 1.000 at 0.08"
    assert script.broken_promises([middle, run(script, 0.1, 1.25, potential="table")]) == []


def test_an_invariant_that_is_not_0_is_broken(script: ModuleType) -> None:
    (broken,) = script.broken_promises([run(script, 0.01, 1.0, worst_invariant=1e-9)])
    assert broken == "at 0.01, zero: an invariant of 1e-09"


def test_a_run_without_validations_is_refused(script: ModuleType, tmp_path: Path) -> None:
    config = {"atlas": {"reward": {"preset": "both"}}}
    manifest = build_manifest(
        "r", config, potential=PotentialBinding(name="zero", sha256="0" * 64), grammar_hashes={}, protocol_token_ids={}
    )
    open_run(tmp_path / "r", manifest, resume=False)
    (tmp_path / "r" / "metrics.jsonl").write_text("")
    with pytest.raises(RecordError, match="let the run finish"):
        script.read_run(tmp_path / "r", tmp_path / "none.parquet")
