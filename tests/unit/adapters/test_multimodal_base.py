"""Qwen3.5, half of it linear attention beside a vision tower: layers keep the names that the trainer gives them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_models import (
    ACTOR,
    CRITIC,
    FINGERPRINT,
    as_filed,
    in_file,
    outputs,
    same_bits,
    settings,
    trainable,
    trained,
)
from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoModelForTokenClassification, Qwen3_5Config

from atlas_rl.adapters.build import load_adapter
from atlas_rl.adapters.export import SavedModel, export_adapter
from atlas_rl.adapters.init import init_adapters
from atlas_rl.adapters.merge import merge_adapter
from atlas_rl.adapters.settings import AdapterKind

TARGETS = ("q_proj", "v_proj", "in_proj_qkv", "in_proj_z", "out_proj", "down_proj")


@pytest.fixture(scope="module")
def qwen3_5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
    }
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    special = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    tokens = {name: 1000 + place for place, name in enumerate(special)}
    folder = tmp_path_factory.mktemp("bases") / "qwen3_5"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = Qwen3_5Config(text_config=text, vision_config=vision, **tokens)
        AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    return folder


def load(folder: Path, kind: AdapterKind) -> Any:
    if kind is ACTOR:
        return AutoModelForImageTextToText.from_pretrained(folder).eval()
    return AutoModelForTokenClassification.from_pretrained(folder, num_labels=1).eval()


def test_adapters_start_train_export_and_merge(qwen3_5: Path, tmp_path: Path) -> None:
    init_adapters(qwen3_5, tmp_path / "init", 4, 8, TARGETS, 0, base_fingerprint=FINGERPRINT)
    for kind in (ACTOR, CRITIC):
        asked = settings(kind, targets=TARGETS)
        live = trained(load_adapter(load(qwen3_5, kind), tmp_path / "init" / kind, asked))
        saved = SavedModel(settings=asked, base_fingerprint=FINGERPRINT, tensors=trainable(live))
        export_adapter(saved, tmp_path / kind, base_dir=qwen3_5, base_fingerprint=FINGERPRINT)
        loaded = PeftModel.from_pretrained(load(qwen3_5, kind), tmp_path / kind)
        assert same_bits(in_file(tmp_path / kind), as_filed(trainable(live)))
        assert torch.equal(outputs(loaded), outputs(live))
    facts = merge_adapter(qwen3_5, tmp_path / "actor", tmp_path / "merged", base_fingerprint=FINGERPRINT)
    assert facts.num_merged == 7  # of the linear layer in_proj_qkv, in_proj_z, out_proj; q_proj, v_proj; two down_proj
    merged = PeftModel.from_pretrained(load(qwen3_5, ACTOR), tmp_path / "actor").merge_and_unload()
    assert torch.equal(outputs(load(tmp_path / "merged", ACTOR)), outputs(merged))
