"""Builds tiny random actors and critics of each family through verl's engine and compares packed rows with separate.

Usage: packed_rows.py FOLDER

Prints one JSON line a case.
"""

import copy
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)
from verl.utils import tensordict_utils as tu

from atlas_rl.cli.composition import compose
from atlas_rl.errors import TrainingError
from atlas_rl.models.tiny import benchmark_texts
from atlas_rl.models.tokenizer import train_tokenizer
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows
from atlas_rl.training import engines
from atlas_rl.training.row_comparison import compare_rows
from atlas_rl.training.standalone import build_actor, build_critic, only_rank

VOCAB = 1024
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.1,
    "tie_word_embeddings": True, "dtype": "float32",
}  # fmt: skip
LINEAR: dict[str, Any] = {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
VISION: dict[str, Any] = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
    "num_position_embeddings": 16,
}  # fmt: skip


def _with_vision() -> Any:
    text = Qwen3_5TextConfig(**SIZES, **LINEAR)
    config = Qwen3_5Config(text_config=text.to_dict(), vision_config=VISION, tie_word_embeddings=True)
    return Qwen3_5ForConditionalGeneration(config)


MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, num_hidden_layers=2)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=2)),
    "qwen3_5_text": lambda: Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SIZES, **LINEAR)),
    "qwen3_5_moe_text": lambda: Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**SIZES, **LINEAR, **EXPERTS)),
    "qwen3_next": lambda: Qwen3NextForCausalLM(Qwen3NextConfig(**SIZES, **LINEAR, **EXPERTS)),
    "qwen3_5": _with_vision,
}
TARGETS = {
    "qwen3": ["q_proj", "v_proj"], "llama": ["q_proj", "v_proj"], "qwen3_5_text": ["q_proj", "in_proj_qkv"],
    "qwen3_5_moe_text": ["q_proj", "in_proj_qkv"], "qwen3_next": ["q_proj", "in_proj_qkvz"],
    "qwen3_5": ["q_proj", "in_proj_qkv"],
}  # fmt: skip

ROLES = {
    "qwen3_5_text": ("actor", "critic"), "qwen3_5_moe_text": ("critic",), "qwen3_next": ("actor",),
    "qwen3_5": ("actor", "critic"),
}  # fmt: skip


class Program:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        texts = benchmark_texts(load_benchmark("urn"), make_rows(UrnConfig(), 8, 0, "q"))
        self.tokenizer = train_tokenizer(texts, vocab_size=VOCAB)
        # Composed once: it takes longer than a model.
        [self.config] = compose(
            [
                "experiment=urn_demo", f"actor_rollout_ref.model.path={self.model('qwen3')}", "data.train_files=x",
                "data.val_files=x", "atlas.run.id=rows", "actor_rollout_ref.actor.optim.total_training_steps=4",
                "critic.optim.total_training_steps=4",
            ]
        )  # fmt: skip

    def model(self, family: str) -> Path:
        path = self.folder / family
        if not path.exists():
            torch.manual_seed(0)
            MODELS[family]().save_pretrained(path)
            self.tokenizer.save_pretrained(path)
        return path

    def engine(self, family: str, role: str, *, packed: bool = True, dtype: str = "fp32") -> Any:
        actor = role == "actor"
        model = "actor_rollout_ref.model" if actor else "critic.model"
        fsdp = "actor_rollout_ref.actor.fsdp_config" if actor else "critic.fsdp"
        config = copy.deepcopy(self.config)
        for key, value in {
            "actor_rollout_ref.model.path": str(self.model(family)),
            "critic.model.path": str(self.model(family)),
            "critic.model.tokenizer_path": str(self.model(family)),
            f"{model}.use_remove_padding": packed,
            f"{model}.target_modules": TARGETS[family],
            f"{model}.lora_rank": 2,
            f"{fsdp}.model_dtype": dtype,
            f"{fsdp}.mixed_precision": {"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        }.items():
            OmegaConf.update(config, key, value, merge=False, force_add=True)
        return build_actor(config).actor.engine if actor else build_critic(config).engine


@contextmanager
def as_verl_does() -> Iterator[None]:
    """Engines built here pass borders to whom verl passes them, and leave the torch functions in place."""
    with (
        patch.object(engines, "stop_at_row_ends", lambda model: False),
        patch.object(engines, "border_arguments", lambda borders: {}),
    ):
        yield


def report(case: str, engine: Any) -> None:
    before, generator, started = engine.trainable_digests(), torch.get_rng_state(), time.monotonic()
    found = compare_rows(engine)
    seconds = time.monotonic() - started
    assert engine.trainable_digests() == before, case
    assert torch.equal(torch.get_rng_state(), generator), case
    message = None
    try:
        found.check()
    except TrainingError as error:
        message = str(error)
    print(json.dumps({"case": case, "message": message, "seconds": seconds} | found.figures()), flush=True)


def report_gradient(case: str, engine: Any) -> None:
    """Greatest relative difference of a gradient between one packed micro-batch and one micro-batch a row."""
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(VOCAB, (tokens,), generator=generator) for tokens in (19, 47, 33)]

    def loss(model_output: Any, data: Any, dp_group: Any) -> Any:
        return sum(row[:-1].sum() for row in model_output["log_probs"].unbind()), {}

    gradients = []
    for size in (len(rows), 1):
        fields = {"input_ids": rows, "position_ids": [torch.arange(len(row)) for row in rows], "loss_mask": rows}
        nested = {name: torch.nested.as_nested_tensor(field, layout=torch.jagged) for name, field in fields.items()}
        batch = TensorDict(nested, batch_size=[len(rows)])
        tu.assign_non_tensor(
            batch, temperature=1.0, use_remove_padding=True, use_dynamic_bsz=False, micro_batch_size_per_gpu=size
        )
        with engine.train_mode():
            engine.optimizer_zero_grad()
            engine.forward_backward_batch(batch, loss, forward_only=False)
            trained = [p.grad.full_tensor() for p in engine.module.parameters() if p.grad is not None]
            gradients.append(torch.cat([gradient.flatten() for gradient in trained]))
    assert float(gradients[1].abs().max()) > 0
    difference = float((gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max())
    print(json.dumps({"case": case, "gradient": difference}), flush=True)


def forget_rows(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """One row out of many: positions go on where the row before ended."""
    keywords["position_ids"] = torch.arange(keywords["input_ids"].numel())[None]
    return arguments, keywords


def main() -> None:
    program = Program(Path(sys.argv[1]))
    with only_rank():
        for family, role in (("qwen3", "actor"), ("qwen3", "critic"), ("llama", "actor"), ("llama", "critic")):
            engine = program.engine(family, role)
            report(f"{family} {role}", engine)
            engine.module.register_forward_pre_hook(forget_rows, with_kwargs=True)
            report(f"{family} {role} with rows forgotten", engine)
        # The family with a vision tower comes last: verl then patches classes that the text-only one shares.
        for family in ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "qwen3_5"):
            for role in ROLES[family]:
                with as_verl_does():
                    report(f"{family} {role} as verl does", program.engine(family, role))
                engine = program.engine(family, role)
                report(f"{family} {role}", engine)
                if role == "actor":
                    report_gradient(f"{family} {role} gradient", engine)
        report("qwen3_5_text actor after qwen3_5", program.engine("qwen3_5_text", "actor"))
        report("qwen3_5 actor padded", program.engine("qwen3_5", "actor", packed=False))
        report("qwen3_5 actor bf16", program.engine("qwen3_5", "actor", dtype="bf16"))
        with as_verl_does():
            report("qwen3_5 actor bf16 as verl does", program.engine("qwen3_5", "actor", dtype="bf16"))


if __name__ == "__main__":
    main()
