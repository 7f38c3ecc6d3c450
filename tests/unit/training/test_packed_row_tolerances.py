"""What is told from the figures of packed and separate rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from atlas_rl.adapters.settings import AdapterKind
from atlas_rl.errors import TrainingError
from atlas_rl.training.packed_rows import FIGURES_FILE, PackedRows, check_packed_rows


def rows(model: AdapterKind = AdapterKind.ACTOR, **changes: Any) -> PackedRows:
    """A bf16 model whose rounding is 0.01 and whose rows are separate."""
    figures: dict[str, Any] = {
        "model_type": "llama", "architecture": "LlamaForCausalLM", "attention": "sdpa", "dtype": "bfloat16",
        "has_linear_attention": False, "has_experts": False, "is_packed": True, "sequence_parallel_size": 1,
        "num_tokens": (5, 7), "differences": (0.01, 0.02), "influences": (0.0, 0.0), "rounding": 0.01, "jitter": 0.0,
        "scale": 1.0,
    }  # fmt: skip
    return PackedRows(model=model, **(figures | changes))


class Group:
    """A worker group of one model."""

    def __init__(self, *ranks: PackedRows) -> None:
        self._ranks = list(ranks)

    def check_packed_rows(self) -> list[PackedRows]:
        return self._ranks


def test_the_tolerance_is_eight_roundings_and_at_least_two_units_of_the_dtype():
    assert rows().tolerance == pytest.approx(0.08)
    assert rows(rounding=0.0).tolerance == pytest.approx(2 / 128)
    assert rows(rounding=0.0, dtype="float32", scale=10.0).tolerance == pytest.approx(20 * 2**-23)


def test_neighbours_may_change_nothing_in_any_dtype():
    assert rows().influence_tolerance == pytest.approx(4 * 2**-23)
    assert rows(jitter=0.001).influence_tolerance == pytest.approx(0.008)
    rows(influences=(1e-7, 1e-7)).check()
    with pytest.raises(TrainingError, match="row 1 of 7 tokens"):
        rows(influences=(0.0, 1e-4)).check()


def test_experts_round_by_their_neighbours():
    rows(influences=(0.0, 0.02), has_experts=True).check()
    with pytest.raises(TrainingError, match="rows leak"):
        rows(influences=(0.0, 0.1), has_experts=True).check()


def test_a_leak_is_one_line_with_model_row_figures_tolerances_and_remedy():
    with pytest.raises(TrainingError) as raised:
        rows(differences=(0.5, 0.02), influences=(0.25, 0.0)).check()
    assert str(raised.value) == (
        "actor llama (LlamaForCausalLM): row 0 of 5 tokens packed with others differs by 5.0e-01 from the same row "
        "alone (tolerance 8.0e-02) and by 2.5e-01 when only its neighbours change (tolerance 4.8e-07): rows leak; set "
        "actor_rollout_ref.model.use_remove_padding=false, or "
        "actor_rollout_ref.model.override_config.attn_implementation to another attention than sdpa"
    )


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"has_linear_attention": True}, "set critic.model.use_remove_padding=false"),
        (
            {"is_packed": False},
            "set critic.model.override_config.attn_implementation to another attention than sdpa",
        ),
        (
            {"sequence_parallel_size": 2},
            "set ulysses_sequence_parallel_size=1 (it is 2); linear attention over several ranks needs "
            "flash-linear-attention",
        ),
    ],
)
def test_the_remedy_fits_the_model(changes: dict[str, Any], remedy: str):
    with pytest.raises(TrainingError) as raised:
        rows(AdapterKind.CRITIC, differences=(1.0, 0.0), **changes).check()
    assert str(raised.value).endswith(f"rows leak; {remedy}")


def test_the_line_and_the_file_hold_the_worst_rank_of_each_model(tmp_path: Path):
    actor = Group(rows(), rows(differences=(0.03, 0.01)))
    line = check_packed_rows([actor, Group(rows(AdapterKind.CRITIC))], tmp_path)
    assert line == "packed rows: actor 3.0e-02 (tolerance 8.0e-02), critic 2.0e-02 (tolerance 8.0e-02)"
    figures = json.loads((tmp_path / FIGURES_FILE).read_text())
    assert list(figures) == ["actor", "critic"]
    assert figures["actor"]["differences"] == [0.03, 0.01]
    assert figures["critic"]["tolerance"] == pytest.approx(0.08)


def test_the_file_is_written_before_a_leak_stops_the_run(tmp_path: Path):
    with pytest.raises(TrainingError, match="critic llama"):
        check_packed_rows([Group(rows()), Group(rows(AdapterKind.CRITIC, differences=(1.0, 0.0)))], tmp_path)
    assert json.loads((tmp_path / FIGURES_FILE).read_text())["critic"]["differences"] == [1.0, 0.0]
