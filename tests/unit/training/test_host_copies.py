"""A model off the card and back is the same model; what trains never leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from script_modules import load_script
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

BENCH = load_script("bench/host_copies.py")
HostCopies, exact_offload = BENCH.HostCopies, BENCH.exact_offload
CPU = torch.device("cpu")


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> nn.Module:
    """A frozen layer with an odd number of rows under a trained one."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 7), nn.Linear(7, 3))
    layers[0].requires_grad_(False)
    return layers


@pytest.mark.usefixtures("_group")
def test_values_gradients_and_shards_survive_the_way_off_and_back() -> None:
    mesh = init_device_mesh("cpu", (1,))
    sharded = model()
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    inputs = torch.randn(5, 8)
    expected = sharded(inputs)
    copies = HostCopies(sharded, CPU)
    for _ in range(2):
        copies.offload()
        copies.load()
        found = sharded(inputs)
        assert torch.equal(found, expected)
    found.sum().backward()
    weight = sharded[1].weight
    assert isinstance(sharded[0].weight, DTensor)
    assert weight.grad is not None
    assert not sharded[0].weight.requires_grad
    assert copies.num_bytes == 4 * (8 * 7 + 7)


def test_only_what_is_frozen_is_copied_and_only_once() -> None:
    plain = model()
    copies = HostCopies(plain, CPU)
    before = plain[1].weight.data_ptr()
    assert copies.num_bytes == 0
    copies.offload()
    on_the_host = plain[0].weight.data_ptr()
    assert plain[1].weight.data_ptr() == before
    copies.load()
    assert plain[0].weight.data_ptr() != on_the_host
    copies.offload()
    assert plain[0].weight.data_ptr() == on_the_host


def test_an_engine_goes_the_same_way_when_it_is_told_to_move() -> None:
    class Engine:
        def __init__(self) -> None:
            self.module = model()
            self.moved: list[tuple[str, bool, bool, bool]] = []
            self._is_offload_param = False

        def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
            self.moved.append((device, model, optimizer, grad))

    engine = Engine()
    copies = exact_offload(engine, CPU)
    assert engine._is_offload_param
    assert copies.num_bytes > 0
    engine.to("cpu", model=True, optimizer=True, grad=True)
    assert engine.moved == [("cpu", False, True, False)]
