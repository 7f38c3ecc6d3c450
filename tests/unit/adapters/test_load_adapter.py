"""An adapter's folder is what a run asks for, or it is refused in one line."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_models import ACTOR, CRITIC, FINGERPRINT, TARGETS, in_file, load_base, settings, trainers_model, write_base
from adapter_models import trainable as trainable_of
from safetensors.torch import save_file

from atlas_rl.adapters.build import load_adapter
from atlas_rl.adapters.init import init_adapters
from atlas_rl.adapters.reading import read_adapter
from atlas_rl.adapters.settings import AdapterKind, AdapterSettings
from atlas_rl.errors import ConfigError


@pytest.fixture
def adapters(qwen3: Path, tmp_path: Path) -> Path:
    init_adapters(qwen3, tmp_path / "adapters", 4, 8, TARGETS, 1, base_fingerprint=FINGERPRINT)
    return tmp_path / "adapters"


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_says_what_it_is(adapters: Path) -> None:
    for kind in (ACTOR, CRITIC):
        adapter = read_adapter(adapters / kind)
        assert (adapter.settings, adapter.base_fingerprint) == (settings(kind), FINGERPRINT)
        assert adapter.shapes == {name: tuple(tensor.shape) for name, tensor in in_file(adapters / kind).items()}


def test_a_folder_that_peft_wrote_loads_too(qwen3: Path, tmp_path: Path) -> None:
    for kind in (ACTOR, CRITIC):
        model = trainers_model(qwen3, kind, seed=4)
        model.save_pretrained(tmp_path / kind)
        assert read_adapter(tmp_path / kind).base_fingerprint is None
        loaded = load_adapter(load_base(qwen3, kind), tmp_path / kind, settings(kind))
        assert trainable_of(loaded).keys() == trainable_of(model).keys()
        assert all(torch.equal(trainable_of(loaded)[name], value) for name, value in trainable_of(model).items())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (settings(ACTOR, rank=8), "has rank 4, asked for rank 8; set one to the other"),
        (AdapterSettings(kind=ACTOR, rank=4, alpha=16, targets=TARGETS), "has alpha 8, asked for alpha 16"),
        (settings(ACTOR, targets=("q_proj",)), "has targets ('down_proj', "),
        (settings(CRITIC), "has kind actor, asked for kind critic"),
    ],
)
def test_an_adapter_of_other_settings_is_refused(
    qwen3: Path, adapters: Path, asked: AdapterSettings, message: str
) -> None:
    assert message in refusal(lambda: load_adapter(load_base(qwen3, asked.kind), adapters / "actor", asked))


def test_an_adapter_of_another_base_is_refused(adapters: Path, tmp_path: Path) -> None:
    wider = load_base(write_base(tmp_path / "wider", "qwen3", hidden_size=64), ACTOR)
    text = refusal(lambda: load_adapter(wider, adapters / "actor", settings()))
    assert "lora_A.weight is (4, 32), its base needs (4, 64); give the base that it was trained on" in text
    deeper = load_base(write_base(tmp_path / "deeper", "qwen3", num_hidden_layers=3), ACTOR)
    text = refusal(lambda: load_adapter(deeper, adapters / "actor", settings()))
    assert "lacks base_model.model.model.layers.2.mlp.down_proj.lora_A.weight (14 such)" in text


def test_a_fingerprint_that_differs_is_refused(adapters: Path) -> None:
    adapter = read_adapter(adapters / "actor")
    adapter.check_base(FINGERPRINT)
    assert f"was made for the base {FINGERPRINT}, this one is cd" in refusal(lambda: adapter.check_base("cd"))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (ACTOR, {"peft_type": "IA3"}, "must describe a LoRA adapter"),
        (ACTOR, {"use_dora": True}, "use_dora=True is not supported"),
        (ACTOR, {"rank_pattern": {"q_proj": 2}}, "rank_pattern={'q_proj': 2} is not supported"),
        (ACTOR, {"init_lora_weights": "pissa"}, "init_lora_weights='pissa' is not supported"),
        (ACTOR, {"task_type": "SEQ_CLS"}, "task_type must be one of CAUSAL_LM, TOKEN_CLS, got 'SEQ_CLS'"),
        (ACTOR, {"task_type": "TOKEN_CLS"}, "modules_to_save=[] is not supported for critic"),
        (ACTOR, {"modules_to_save": ["embed_tokens"]}, "modules_to_save=['embed_tokens'] is not supported for actor"),
        (CRITIC, {"modules_to_save": None}, "modules_to_save=[] is not supported for critic"),
        (ACTOR, {"target_modules": "all-linear"}, "target_modules must be a list of names, got 'all-linear'"),
        (ACTOR, {"target_modules": ["q_proj"]}, "model.layers.0.mlp.down_proj is in one alone"),
        (ACTOR, {"target_modules": [*TARGETS, "wq"]}, "wq is in one alone"),
        (ACTOR, {"r": 8}, "lora_A.weight has rank 4, adapter_config.json says 8; copy both files again"),
        (ACTOR, {"r": None}, "lora rank must be a whole number of at least 1, got None"),
    ],
)
def test_a_configuration_that_is_not_plain_lora_is_refused(
    adapters: Path, kind: AdapterKind, changes: dict[str, Any], message: str
) -> None:
    edit(adapters / kind, **changes)
    assert message in refusal(lambda: read_adapter(adapters / kind))


@pytest.mark.parametrize(
    ("kind", "drop", "add", "message"),
    [
        (
            ACTOR,
            "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight",
            None,
            "lacks tensor base_model.model.model",
        ),
        (CRITIC, "base_model.model.score.weight", None, "lacks tensor base_model.model.score.weight"),
        (ACTOR, None, "base_model.model.score.weight", "has the unknown tensor base_model.model.score.weight"),
    ],
)
def test_a_tensor_too_few_or_too_many_is_refused(
    adapters: Path, kind: AdapterKind, drop: str | None, add: str | None, message: str
) -> None:
    tensors = in_file(adapters / kind) | ({add: torch.zeros(1, 32)} if add else {})
    save_file(
        {name: value for name, value in tensors.items() if name != drop}, adapters / kind / "adapter_model.safetensors"
    )
    assert message in refusal(lambda: read_adapter(adapters / kind))


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_or_cut_file_is_named(adapters: Path, name: str) -> None:
    path = adapters / "actor" / name
    path.write_bytes(path.read_bytes()[:-9])
    assert re.search(rf"{name}: no (JSON|whole safetensors file)", refusal(lambda: read_adapter(adapters / "actor")))
    path.unlink()
    assert f"no {name} there" in refusal(lambda: read_adapter(adapters / "actor"))
