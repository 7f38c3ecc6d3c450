"""What is saved comes back to the bit, into a fresh engine too, and training goes on as if nothing had happened."""

import random
import threading
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from checkpoint_states import ACTOR, RUN, bits, is_step, load, rank_state, run_state, same, save_step
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.engine_state import capture_engine, restore_engine, trainable_specs
from atlas_rl.checkpoint.identity import ModelIdentity, RunIdentity
from atlas_rl.checkpoint.loading import load_rank, load_run
from atlas_rl.checkpoint.rank_writer import RankWriter
from atlas_rl.checkpoint.rng import capture_rng, restore_rng
from atlas_rl.checkpoint.state import RunState
from atlas_rl.checkpoint.whole import whole_trainable
from atlas_rl.errors import ConfigError, TrainingError

SOLO = RunIdentity(run_id="r", models={"actor": ModelIdentity(world_size=1, base_fingerprint="f", lora=None)})


class Engine:
    """A frozen bf16 layer with fp32 adapters, as a trainer has it; noise makes every step depend on the generators."""

    def __init__(self, seed: int, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW, **options: Any) -> None:
        torch.manual_seed(0)
        base = torch.nn.Linear(8, 8).bfloat16()  # the same for all: a step is bound to its base
        torch.manual_seed(seed)
        self.module = torch.nn.ModuleDict({"base": base, "down": torch.nn.Linear(8, 4), "up": torch.nn.Linear(4, 8)})
        self.module["base"].requires_grad_(requires_grad=False)
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self.optimizer = optimizer(trained, lr=0.1, **options)  # type: ignore[call-arg]
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            rows = torch.randn(5, 8) * random.random() + float(np.random.rand())
            out = self.module["up"](self.module["down"](rows)) + self.module["base"](rows.bfloat16()).float()
            out.square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()

    def state(self) -> Any:
        return {"rank": vars(capture_engine(self.module, self.optimizer, self.scheduler))}


def save_engine(folder: Path, engine: Engine, step: int) -> Path:
    with StepCommitter(folder, identity=SOLO, code_version="v", anchor_every=None) as committer:
        writer = RankWriter("actor", 0)
        partial = committer.begin(step)
        writer.save(partial, capture_engine(engine.module, engine.optimizer, engine.scheduler))
        committer.commit(partial, run_state(step))
        assert writer.wait() is not None
        final = committer.wait()
    assert final is not None
    return final


def load_engine(folder: Path, engine: Engine) -> None:
    identity = SOLO.models["actor"]
    state = load_rank(folder, "actor", 0, expect=identity, trainable=trainable_specs(engine.module))
    restore_engine(engine.module, engine.optimizer, engine.scheduler, state)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.AdamW, {"betas": (0.9, 0.95), "weight_decay": 0.01}),
        (torch.optim.AdamW, {"amsgrad": True, "fused": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {}),
    ],
    ids=["adamw", "fused_amsgrad", "momentum", "stateless"],
)
def test_six_steps_equal_three_a_fresh_engine_and_three_more(
    tmp_path: Path, optimizer: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    random.seed(1)
    np.random.seed(1)
    engine = Engine(1, optimizer, **options)
    engine.train(3)
    saved = save_engine(tmp_path, engine, 3)
    engine.train(3)
    uninterrupted = engine.state()

    random.seed(2)
    np.random.seed(2)
    resumed = Engine(2, optimizer, **options)
    load_engine(saved, resumed)
    resumed.train(3)
    assert same(resumed.state(), uninterrupted)


def test_an_engine_that_never_stepped_comes_back_without_optimizer_state(tmp_path: Path) -> None:
    fresh = Engine(1)
    saved = save_engine(tmp_path, fresh, 0)
    stepped = Engine(2)
    stepped.train(2)
    load_engine(saved, stepped)
    assert stepped.optimizer.state_dict()["state"] == {}
    assert same(stepped.state()["rank"]["trainable"], fresh.state()["rank"]["trainable"])


def test_only_what_trains_is_saved(tmp_path: Path) -> None:
    saved = save_engine(tmp_path, Engine(1), 1)
    names = set(whole_trainable(saved, "actor"))
    assert names == {"down.weight", "down.bias", "up.weight", "up.bias"}


def test_a_step_with_many_ranks_comes_back_whole(tmp_path: Path) -> None:
    assert is_step(load(save_step(tmp_path, 7)), 7)


def test_two_steps_are_told_apart(tmp_path: Path) -> None:
    assert not is_step(load(save_step(tmp_path, 7)), 8)


def test_the_state_may_change_as_soon_as_save_returns(tmp_path: Path) -> None:
    disk = threading.Event()

    def slow(path: Path) -> BinaryIO:
        assert disk.wait(30)
        return path.open("xb")

    with StepCommitter(tmp_path, identity=SOLO, code_version="v", anchor_every=None, open_file=slow) as committer:
        engine = Engine(1)
        engine.train(1)
        before = {name: bits(tensor) for name, tensor in engine.module.state_dict().items()}
        state, position = capture_engine(engine.module, engine.optimizer, engine.scheduler), {"seen": [1]}
        writer = RankWriter("actor", 0, open_file=slow)
        partial = committer.begin(1)
        writer.save(partial, state)
        committer.commit(partial, RunState(**(vars(run_state(1)) | {"dataloader": position})))
        engine.train(2)
        position["seen"].append(2)
        assert list(partial.rglob("*.safetensors")) == []
        disk.set()
        writer.wait()
        final = committer.wait()
    assert final is not None
    loaded = load_rank(final, "actor", 0, expect=SOLO.models["actor"], trainable=None)
    assert {name: bits(tensor) for name, tensor in loaded.trainable.items()} == {n: before[n] for n in loaded.trainable}
    assert {float(state["step"]) for state in loaded.optimizer["state"].values()} == {1.0}
    assert load_run(final, expect=SOLO).dataloader == {"seen": [1]}


def test_saving_draws_from_no_generator(tmp_path: Path) -> None:
    before = capture_rng()
    save_step(tmp_path, 1)
    assert same(capture_rng(), before)


def test_the_generators_of_a_process_come_back(tmp_path: Path) -> None:
    random.gauss(0, 1)  # leaves a second value for the next call
    np.random.standard_normal()
    saved = capture_rng()

    def draws() -> list[float]:
        return [random.gauss(0, 1), random.random(), np.random.standard_normal(), float(torch.rand(()))]

    first = draws()
    restore_rng(saved)
    assert draws() == first


def test_a_state_from_a_card_is_refused_without_one() -> None:
    with pytest.raises(
        ConfigError, match="this process uses no card, the saved one used one; resume on the same hardware"
    ):
        restore_rng(capture_rng() | {"torch_cuda": torch.zeros(16, dtype=torch.uint8)})


def batches(loader: StatefulDataLoader, count: int) -> list[list[int]]:
    drawn: list[list[int]] = []
    iterator = iter(loader)
    while len(drawn) < count:
        try:
            drawn.append(next(iterator).tolist())
        except StopIteration:
            iterator = iter(loader)
    return drawn


def shuffled_loader(seed: int = 3) -> StatefulDataLoader:
    data = list(range(10))
    return StatefulDataLoader(
        data, batch_size=2, num_workers=0, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(seed))
    )


@pytest.mark.parametrize("drawn", [1, 4, 5, 7])
def test_the_data_goes_on_where_it_stopped_over_epochs(tmp_path: Path, drawn: int) -> None:
    loader = shuffled_loader()
    iterator = iter(loader)
    for place in range(drawn):
        if place and place % 5 == 0:
            iterator = iter(loader)
        next(iterator)
    position = loader.state_dict()
    with StepCommitter(
        tmp_path, identity=RunIdentity(run_id="r", models={}), code_version="v", anchor_every=None
    ) as one:
        one.commit(one.begin(1), RunState(**(vars(run_state(1)) | {"dataloader": position})))
        final = one.wait()
    assert final is not None
    saved = load_run(final, expect=RunIdentity(run_id="r", models={})).dataloader
    assert same(saved, position)
    by_itself, by_file = shuffled_loader(9), shuffled_loader(8)
    by_itself.load_state_dict(position)
    by_file.load_state_dict(saved)
    assert batches(by_file, 12) == batches(by_itself, 12)


def test_a_receipt_names_size_and_digest_of_every_file_of_its_rank(tmp_path: Path) -> None:
    with StepCommitter(tmp_path, identity=RUN, code_version="v", anchor_every=None) as committer:
        partial = committer.begin(4)
        writer = RankWriter("critic", 0)
        cost = writer.save(partial, rank_state("critic", 0, 4))
        receipt = writer.wait()
        assert writer.wait() is None
        assert receipt is not None
        files = sorted(
            path.relative_to(partial).as_posix() for path in (partial / "critic").rglob("*") if path.is_file()
        )
        assert (receipt.model, receipt.rank, receipt.step) == ("critic", 0, 4)
        assert sorted(receipt.files) == files
        assert {name: entry.size for name, entry in receipt.files.items()} == {
            name: (partial / name).stat().st_size for name in files
        }
        assert cost.num_bytes == sum(entry.size for entry in receipt.files.values())


def test_an_optimizer_of_other_parameters_than_those_that_train_is_refused() -> None:
    engine = Engine(1)
    engine.module["up"].bias.requires_grad_(requires_grad=False)
    with pytest.raises(TrainingError, match=r"optimizer: holds 1 parameters that do not train and lacks 0 that do"):
        capture_engine(engine.module, engine.optimizer, engine.scheduler)
    engine.module["up"].bias.requires_grad_()
    engine.module["base"].bias.requires_grad_()
    with pytest.raises(TrainingError, match=r"holds 0 .* lacks 1 that do \(\['base.bias'\]\); build it from"):
        capture_engine(engine.module, engine.optimizer, engine.scheduler)


def test_state_that_torch_would_round_is_refused(tmp_path: Path) -> None:
    saved = save_engine(tmp_path, trained(Engine(1)), 1)
    state = load_rank(saved, "actor", 0, expect=SOLO.models["actor"], trainable=None)
    state.optimizer["state"]["up.bias"]["exp_avg"] = state.optimizer["state"]["up.bias"]["exp_avg"].double()
    engine = Engine(2)
    with pytest.raises(ConfigError, match=r"up.bias: exp_avg was saved as F64 and would be loaded as F32"):
        restore_engine(engine.module, engine.optimizer, engine.scheduler, state)


def test_parameter_groups_of_other_names_are_refused(tmp_path: Path) -> None:
    saved = save_engine(tmp_path, trained(Engine(1)), 1)
    engine = Engine(2)
    parameters = engine.optimizer.param_groups[0]["params"]
    parameters.append(parameters.pop(0))
    with pytest.raises(ConfigError, match="the saved parameter groups hold other names"):
        load_engine(saved, engine)


def trained(engine: Engine) -> Engine:
    engine.train(1)
    return engine


def test_a_rank_loads_without_the_files_of_others(tmp_path: Path) -> None:
    saved = save_step(tmp_path, 2)
    (saved / "actor" / "rank_0" / "trainable.safetensors").unlink()
    found = load_rank(saved, "actor", 1, expect=ACTOR, trainable=None)
    assert same(vars(found), vars(rank_state("actor", 1, 2)))
