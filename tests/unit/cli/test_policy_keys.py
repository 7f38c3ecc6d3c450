"""What the modes of log-probabilities ask of verl's keys and of the model."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from atlas_rl.cli.model_folder import ModelFolder
from atlas_rl.cli.policy_keys import check_policy_keys
from atlas_rl.errors import ConfigError
from atlas_rl.training.config import atlas_config


def settings(policy: dict[str, Any], *, runtime: dict[str, Any] | None = None, **keys: Any) -> Any:
    config = OmegaConf.create(
        {
            "atlas": {"run": {"id": "r"}, "policy": policy, "runtime": runtime or {}},
            "actor_rollout_ref": {
                "rollout": {"top_p": 1.0, "top_k": -1},
                "model": {"use_fused_kernels": False, "target_modules": ["q_proj"]},
            },
        }
    )
    for key, value in keys.items():
        OmegaConf.update(config, f"actor_rollout_ref.{key.replace('__', '.')}", value)
    return config


def check(config: Any, folder: Path, **model: Any) -> None:
    read = ModelFolder(key="model", path=folder, config={"model_type": "qwen3", **model}, fingerprint="")
    check_policy_keys(config, atlas_config(config), read)


def test_both_modes_pass_as_they_come(tmp_path: Path):
    check(settings({}), tmp_path)
    check(settings({"logprobs": "grammar"}), tmp_path)
    check(settings({"train_forced_tokens": False}), tmp_path)


@pytest.mark.parametrize(
    ("policy", "runtime", "keys", "said"),
    [
        ({"logprobs": "grammar"}, {"grammar": False}, {}, "atlas.runtime.grammar=false samples without one"),
        ({"logprobs": "grammar"}, {}, {"rollout__top_p": 0.9}, r"rollout.top_p=0.9: .*set .*top_p=1.0"),
        ({"logprobs": "grammar"}, {}, {"rollout__top_k": 20}, r"rollout.top_k=20: .*set .*top_k=-1"),
        ({"logprobs": "grammar", "train_forced_tokens": False}, {}, {}, "forced tokens never train"),
        ({}, {}, {"model__use_fused_kernels": True}, "head_chunk_tokens=null"),
        ({}, {}, {"model__target_modules": ["q_proj", "lm_head"]}, "holds lm_head"),
    ],
)
def test_what_a_mode_cannot_keep_is_refused(tmp_path: Path, policy: Any, runtime: Any, keys: Any, said: str):
    with pytest.raises(ConfigError, match=said):
        check(settings(policy, runtime=runtime, **keys), tmp_path)


def test_a_model_that_rescales_its_logits_needs_verls_own_head(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"config\.json: final_logit_softcapping=30\.0 changes the logits"):
        check(settings({}), tmp_path, final_logit_softcapping=30.0)
    with pytest.raises(ConfigError, match=r"logit_scale=0\.5"):
        check(settings({}), tmp_path, text_config={"logit_scale": 0.5})
    check(settings({"head_chunk_tokens": None}), tmp_path, final_logit_softcapping=30.0)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"logprobs": "legal"}, "must be one of full_vocab, grammar, got 'legal'"),
        ({"logprobs": "grammar", "head_chunk_tokens": None}, "needs the chunked head"),
        ({"head_chunk_tokens": 0}, "must be at least 1 or null, got 0"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_at_birth(policy: Any, said: str):
    with pytest.raises(ConfigError, match=said):
        atlas_config(settings(policy))
