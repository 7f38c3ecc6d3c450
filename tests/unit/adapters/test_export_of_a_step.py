"""``atlas-rl lora export`` of steps that FSDP2's ranks saved: any number of ranks gives the same adapters."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from adapter_models import ACTOR, CRITIC, TARGETS, as_filed, in_file, same_bits, say, trainable, trained, trainers_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.identity import LoraIdentity, ModelIdentity, RunIdentity
from atlas_rl.checkpoint.rank_writer import RankWriter
from atlas_rl.checkpoint.state import RankState, RunState
from atlas_rl.cli.model_folder import fingerprint
from atlas_rl.errors import AtlasError, ConfigError, TrainingError

RUN_STATE = RunState(
    global_step=3, epoch=0, actor_updates=3, critic_updates=3, kl_coefficient=None, dataloader=None, rng=None
)
LORA = LoraIdentity(rank=4, alpha=8.0, target_modules=TARGETS)


@contextmanager
def one_of(num_ranks: int, rank: int) -> Iterator[None]:
    """This process as one rank of a group that sends nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def save(base: Path, folder: Path, mesh: tuple[int, ...], lora: LoraIdentity | None = LORA) -> Path:
    """Save a trained actor and critic from every rank of a mesh of replicas times shards."""
    num_ranks = torch.Size(mesh).numel()
    identity = ModelIdentity(world_size=num_ranks, base_fingerprint=fingerprint(base), lora=lora)
    run = RunIdentity(run_id="r", models={"actor": identity, "critic": identity})
    with StepCommitter(folder, identity=run, code_version="v", anchor_every=None) as committer:
        partial = committer.begin(3)
        for rank in range(num_ranks):
            with one_of(num_ranks, rank):
                # Torch keeps meshes by their names; those of another rank would tell this one the wrong place.
                names = (f"replicate{rank}", f"shard{rank}")[-len(mesh) :]
                for kind in (ACTOR, CRITIC):
                    model = trained(trainers_model(base, kind, seed=0))
                    fully_shard(model, mesh=init_device_mesh("cpu", mesh, mesh_dim_names=names))
                    writer = RankWriter(kind, rank)
                    state = RankState(trainable=trainable(model), optimizer=None, scheduler=None, rng=None)
                    writer.save(partial, state)
                    writer.wait()
        committer.commit(partial, RUN_STATE)
        final = committer.wait()
    assert final is not None
    return final


@pytest.mark.parametrize("mesh", [(1,), (3,), (2, 2)])
def test_any_number_of_ranks_gives_the_live_models_values(base: Path, tmp_path: Path, mesh: tuple[int, ...]) -> None:
    step = save(base, tmp_path / "checkpoints", mesh)
    said = say("export", step, "--base", base, "--out", tmp_path / "out")
    for kind, line in zip((ACTOR, CRITIC), said, strict=True):
        live = trainable(trained(trainers_model(base, kind, seed=0)))
        assert same_bits(in_file(tmp_path / "out" / kind), as_filed(live))
        assert line.startswith(f"{tmp_path}/out/{kind}: {'CAUSAL_LM' if kind is ACTOR else 'TOKEN_CLS'}, rank 4, ")
        assert f", {len(live)} tensors, " in line
        assert ", 14 of 14 B non-zero, sha256 " in line


def test_one_model_can_be_asked_for(qwen3: Path, tmp_path: Path) -> None:
    step = save(qwen3, tmp_path / "checkpoints", (2,))
    say("export", step, "--base", qwen3, "--out", tmp_path / "out", "--model", "critic")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["critic"]
    assert "base_model.model.score.weight" in in_file(tmp_path / "out" / "critic")


def refusal(error: type[AtlasError], tmp_path: Path, *arguments: object) -> str:
    with pytest.raises(error) as caught:
        say("export", *arguments, "--out", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.glob("*out*")) == []
    return str(caught.value)


def test_a_damaged_file_of_the_step_is_named(qwen3: Path, tmp_path: Path) -> None:
    step = save(qwen3, tmp_path / "checkpoints", (2,))
    path = step / "critic" / "rank_1" / "trainable.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert f"{path}: damaged" in refusal(TrainingError, tmp_path, step, "--base", qwen3)


def test_another_base_and_a_model_without_an_adapter_are_refused(qwen3: Path, bf16_base: Path, tmp_path: Path) -> None:
    step = save(qwen3, tmp_path / "a", (1,))
    text = refusal(ConfigError, tmp_path, step, "--base", bf16_base)
    assert text.startswith(f"saved actor was trained on the base {fingerprint(qwen3)}, {bf16_base} is")
    whole = save(qwen3, tmp_path / "b", (1,), lora=None)
    text = refusal(ConfigError, tmp_path, whole, "--base", qwen3)
    assert text == f"{whole}: the actor was trained whole, without an adapter; there is none to export"


def test_a_model_that_no_step_has_is_refused(qwen3: Path, tmp_path: Path) -> None:
    text = refusal(ConfigError, tmp_path, tmp_path / "global_step_3", "--base", qwen3, "--model", "judge")
    assert text == "--model must be one of actor, critic, got 'judge'"


def test_a_folder_that_is_no_step_is_refused(qwen3: Path, tmp_path: Path) -> None:
    text = refusal(TrainingError, tmp_path, tmp_path / "global_step_3", "--base", qwen3)
    assert text.startswith(f"{tmp_path}/global_step_3/manifest.json: not there; the folder is no complete step")
