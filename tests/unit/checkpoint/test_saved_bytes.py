"""A step takes hardly more bytes than the tensors that it is for."""

from pathlib import Path

import torch
from checkpoint_states import run_state

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.engine_state import capture_engine
from atlas_rl.checkpoint.identity import LoraIdentity, ModelIdentity, RunIdentity
from atlas_rl.checkpoint.rank_writer import RankWriter
from atlas_rl.checkpoint.rng import capture_rng
from atlas_rl.checkpoint.state import RunState

RANK, HIDDEN, NUM_LAYERS = 64, 1024, 3
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


def lora_model() -> torch.nn.Module:
    """Adapters of rank 64 under the names that PEFT gives them, over nothing."""
    module = torch.nn.Module()
    for layer in range(NUM_LAYERS):
        for target in TARGETS:
            for part, shape in (("A", (RANK, HIDDEN)), ("B", (HIDDEN, RANK))):
                name = f"base_model|model|model|layers|{layer}|self_attn|{target}|lora_{part}|default|weight"
                module.register_parameter(name, torch.nn.Parameter(torch.randn(shape)))
    return module


def test_saved_bytes_are_at_most_one_per_cent_more_than_the_tensors(tmp_path: Path) -> None:
    module = lora_model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = capture_engine(module, optimizer, None)
    moments = [value for own in state.optimizer["state"].values() for value in own.values()]
    num_tensor_bytes = sum(tensor.nbytes for tensor in (*state.trainable.values(), *moments))
    assert 15_000_000 < num_tensor_bytes < 20_000_000

    lora = LoraIdentity(rank=RANK, alpha=128, target_modules=TARGETS)
    actor = ModelIdentity(world_size=1, base_fingerprint="a" * 64, lora=lora)
    identity = RunIdentity(run_id="r", models={"actor": actor})
    with StepCommitter(tmp_path, identity=identity, code_version="v", anchor_every=None) as committer:
        writer = RankWriter("actor", 0)
        partial = committer.begin(1)
        writer.save(partial, state)
        committer.commit(partial, RunState(**(vars(run_state(1)) | {"rng": capture_rng()})))
        final = committer.wait()
    assert final is not None
    num_saved_bytes = sum(path.stat().st_size for path in final.rglob("*") if path.is_file())
    assert 1 < num_saved_bytes / num_tensor_bytes <= 1.01
    print(f"saved bytes over tensor bytes: {num_saved_bytes / num_tensor_bytes:.5f}")
