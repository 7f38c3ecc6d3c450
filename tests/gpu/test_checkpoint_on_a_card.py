"""A step saved from a card while training goes on is the step as it was, and resumes to the bit on the card."""

from pathlib import Path

import pytest
import torch

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.engine_state import capture_engine, restore_engine, trainable_specs
from atlas_rl.checkpoint.identity import ModelIdentity, RunIdentity
from atlas_rl.checkpoint.loading import load_rank
from atlas_rl.checkpoint.rank_writer import RankWriter
from atlas_rl.checkpoint.state import RunState

pytestmark = pytest.mark.gpu

ACTOR = ModelIdentity(world_size=1, base_fingerprint="f", lora=None)
WIDTH = 2048


def engine(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)).cuda()
    return module, torch.optim.AdamW(module.parameters(), lr=1e-2)


def train(module: torch.nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> list[torch.Tensor]:
    """Steps on rows that the card's generator draws; returns the parameters and moments after them."""
    for _ in range(num_steps):
        module(torch.randn(32, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [tensor.detach().cpu() for tensor in (*module.parameters(), *moments)]


def test_three_steps_a_fresh_engine_and_three_more_equal_six(tmp_path: Path) -> None:
    module, optimizer = engine(1)
    train(module, optimizer, 3)
    with StepCommitter(
        tmp_path, identity=RunIdentity(run_id="r", models={"actor": ACTOR}), code_version="v", anchor_every=None
    ) as committer:
        writer = RankWriter("actor", 0)
        partial = committer.begin(3)
        cost = writer.save(partial, capture_engine(module, optimizer, None))
        uninterrupted = train(module, optimizer, 3)
        state = RunState(
            global_step=3, epoch=0, actor_updates=3, critic_updates=0, kl_coefficient=None, dataloader=None, rng=None
        )
        committer.commit(partial, state)
        writer.wait()
        saved = committer.wait()
    assert saved is not None
    assert cost.num_bytes > 3 * 2 * 4 * WIDTH * WIDTH

    fresh, fresh_optimizer = engine(2)
    loaded = load_rank(saved, "actor", 0, expect=ACTOR, trainable=trainable_specs(fresh))
    restore_engine(fresh, fresh_optimizer, None, loaded)
    resumed = train(fresh, fresh_optimizer, 3)
    assert len(resumed) == 4 + 4 * 3
    assert all(torch.equal(one, other) for one, other in zip(resumed, uninterrupted, strict=True))
