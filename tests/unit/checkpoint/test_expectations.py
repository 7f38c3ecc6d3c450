"""A step of another kind than the run that wants it is refused, with both values and the remedy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoint_states import ACTOR, CRITIC, LORA, RUN, rank_state, save_step

from atlas_rl.checkpoint.identity import LoraIdentity, RunIdentity
from atlas_rl.checkpoint.loading import load_rank, load_step
from atlas_rl.checkpoint.tensors import TensorSpec, spec_of
from atlas_rl.errors import ConfigError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_step(tmp_path_factory.mktemp("saved"), 3)


def refusal(saved: Path, expect: RunIdentity, trainable: Any = None) -> str:
    with pytest.raises(ConfigError) as refused:
        load_step(saved, expect=expect, trainable=trainable)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"world_size": 4},
            "actor was saved with world size 2, this run has 4; resume it on 2 ranks, or export its adapters and start "
            "a new run from them",
        ),
        (
            {"base_fingerprint": "b"},
            f"actor was saved with base fingerprint {'a' * 64}, this run has b; give the base model that it was "
            "trained from",
        ),
        (
            {"lora": replace(LORA, rank=32)},
            "actor was saved with LoRA rank 64, this run has 32; set the adapter's keys as they were",
        ),
        (
            {"lora": replace(LORA, alpha=64.0)},
            "actor was saved with LoRA alpha 128.0, this run has 64.0; set the adapter's keys as they were",
        ),
        (
            {"lora": replace(LORA, target_modules=("q_proj",))},
            "actor was saved with target modules ['q_proj', 'v_proj'], this run has ['q_proj']; set the adapter's keys "
            "as they were",
        ),
        ({"lora": None}, "actor was saved with LoRA rank 64, this run has none; set the adapter's keys as they were"),
    ],
    ids=["world_size", "base", "rank", "alpha", "targets", "no_lora"],
)
def test_a_model_of_another_kind_is_refused(saved: Path, change: dict[str, Any], message: str) -> None:
    other = replace(ACTOR, **change)
    expect = RunIdentity(run_id="r", models={"actor": other, "critic": CRITIC})
    assert refusal(saved, expect) == f"{saved}: {message}"
    with pytest.raises(ConfigError) as refused:
        load_rank(saved, "actor", 0, expect=other, trainable=None)
    assert str(refused.value) == f"{saved}: {message}"


def test_another_run_or_other_models_are_refused(saved: Path) -> None:
    assert refusal(saved, replace(RUN, run_id="s")) == (
        f"{saved}: saved by run 'r', this is run 's'; a resumed run keeps its id, so set it to that, or start from "
        "exported adapters"
    )
    assert refusal(saved, replace(RUN, models={"actor": ACTOR})) == (
        f"{saved}: saved with the models ['actor', 'critic'], this run has ['actor']; configure the same models"
    )
    with pytest.raises(ConfigError, match=r"holds the models \['actor', 'critic'\], no 'judge'; configure the same"):
        load_rank(saved, "judge", 0, expect=ACTOR, trainable=None)


def test_the_order_of_target_modules_does_not_count(saved: Path) -> None:
    lora = LoraIdentity(rank=64, alpha=128, target_modules=("v_proj", "q_proj"))
    models = {"actor": replace(ACTOR, lora=lora), "critic": replace(CRITIC, lora=lora)}
    assert load_step(saved, expect=RunIdentity(run_id="r", models=models)).manifest.step == 3


def specs() -> dict[str, TensorSpec]:
    return {name: spec_of(name, tensor) for name, tensor in rank_state("actor", 1, 0).trainable.items()}


BUILD = "build the model as it was saved"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda wanted: wanted | {"score.new": TensorSpec("F32", (1,))},
            f"of the trainable tensors it lacks 1 that the model trains, first 'score.new'; {BUILD}",
        ),
        (
            lambda wanted: {name: spec for name, spec in wanted.items() if not name.startswith("score.")},
            f"of the trainable tensors it has 3 that the model does not train, first 'score.weight'; {BUILD}",
        ),
        (
            lambda wanted: {name.replace("lora_A", "lora_C"): spec for name, spec in wanted.items()},
            "of the trainable tensors it lacks 1 that the model trains, first 'layer.lora_C' and has 1 that the model "
            f"does not train, first 'layer.lora_A'; {BUILD}",
        ),
        (
            lambda wanted: wanted | {"layer.lora_A": TensorSpec("F32", (16, 8))},
            f"tensor 'layer.lora_A' is F32[8, 16], the model's is F32[16, 8]; {BUILD}",
        ),
        (
            lambda wanted: wanted | {"score.weight": TensorSpec("F32", (1, 16))},
            f"tensor 'score.weight' is BF16[1, 16], the model's is F32[1, 16]; {BUILD}",
        ),
        (
            lambda wanted: wanted | {"layer.lora_A": TensorSpec("F32", (8, 16), (16, 16), (8, 0))},
            f"tensor 'layer.lora_A' is F32[8, 16], the model's is F32[8, 16] at [8, 0] of [16, 16]; {BUILD}",
        ),
    ],
    ids=["missing", "extra", "renamed", "shape", "dtype", "sharded"],
)
def test_other_trainable_tensors_are_refused_by_name(saved: Path, change: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_rank(saved, "actor", 1, expect=ACTOR, trainable=change(specs()))
    assert str(refused.value) == f"{saved}/actor/rank_1/trainable.safetensors: {message}"


def test_the_right_trainable_tensors_are_accepted(saved: Path) -> None:
    assert list(load_rank(saved, "actor", 1, expect=ACTOR, trainable=specs()).trainable) == list(specs())


def test_a_whole_step_is_held_against_the_tensors_of_every_rank(saved: Path) -> None:
    wanted = {("actor", 0): specs(), ("actor", 1): specs(), ("critic", 0): {}}
    assert refusal(saved, RUN, wanted).startswith(f"{saved}/critic/rank_0/trainable.safetensors: of the trainable")
