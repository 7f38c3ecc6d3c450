"""The tensor files are safetensors files, and hold every bit of every kind of tensor."""

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from checkpoint_states import bits, rank_state, same

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.durable import write_file
from atlas_rl.checkpoint.identity import ModelIdentity, RunIdentity
from atlas_rl.checkpoint.rank_writer import RankWriter
from atlas_rl.checkpoint.snapshot import HostBuffers
from atlas_rl.checkpoint.state import Part
from atlas_rl.checkpoint.tensors import DTYPES, TensorSpec, read_tensors, spec_of
from atlas_rl.errors import TrainingError


def written(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    snapshot = HostBuffers().snapshot([Part("part", None, tensors)])
    write_file(folder / "part.safetensors", snapshot.tensors["part.safetensors"].chunks())
    return folder / "part.safetensors"


def test_every_dtype_and_shape_keeps_its_bits_and_the_library_reads_them(tmp_path: Path) -> None:
    noise = torch.randint(0, 256, (24 * 8,), dtype=torch.uint8)
    tensors = {
        f"values.{spelled}": noise[: 24 * dtype.itemsize].view(dtype).view(2, 3, 4) for dtype, spelled in DTYPES.items()
    }
    tensors["values.BOOL"] = noise[:24].view(2, 3, 4) > 100
    tensors |= {name.replace("values", "scalar"): value.reshape(-1)[3] for name, value in tensors.items()}
    tensors |= {f"empty.{spelled}": torch.empty(0, 5, dtype=dtype) for dtype, spelled in DTYPES.items()}
    path = written(tmp_path, tensors)
    specs = {name: spec_of(name, tensor) for name, tensor in tensors.items()}
    ours = read_tensors(path, path.read_bytes(), specs)
    theirs = safetensors.torch.load_file(path)
    assert list(ours) == list(tensors)
    assert set(theirs) == set(tensors)
    for name, tensor in tensors.items():
        assert same(ours[name], tensor), name
        assert same(theirs[name], tensor), name


def test_a_tensor_that_is_a_view_is_saved_as_what_it_shows(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    path = written(tmp_path, {"transposed": whole.T, "row": whole[1], "wide": whole[:1].expand(5, 4)})
    with safetensors.safe_open(path, "pt") as file:
        assert file.get_tensor("transposed").tolist() == whole.T.tolist()
        assert file.get_tensor("row").tolist() == [4, 5, 6, 7]
        assert file.get_tensor("wide").tolist() == [[0, 1, 2, 3]] * 5


def test_the_file_of_no_tensors_is_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    assert safetensors.torch.load_file(path) == {}
    assert read_tensors(path, path.read_bytes(), {}) == {}


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(2, device="meta"), torch.eye(2).to_sparse(), torch.zeros(1, dtype=torch.complex128)],
    ids=["meta", "sparse", "complex128"],
)
def test_a_tensor_that_a_file_cannot_hold_is_refused_by_name(tensor: torch.Tensor) -> None:
    with pytest.raises(TrainingError, match=r"tensor 'w': .* cannot be saved; give a dense tensor"):
        spec_of("w", tensor)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({}, "tensor 'w' is only in the file"),
        ({"w": TensorSpec("F32", (2,)), "v": TensorSpec("F32", ())}, "tensor 'v' is only in the manifest"),
        ({"w": TensorSpec("F32", (1, 2))}, r"tensor 'w' is F32\[2\] in the file and F32\[1, 2\] in the manifest"),
        ({"w": TensorSpec("I32", (2,))}, r"tensor 'w' is F32\[2\] in the file and I32\[2\] in the manifest"),
    ],
)
def test_a_file_that_is_not_what_the_manifest_says_is_refused(
    tmp_path: Path, specs: dict[str, TensorSpec], message: str
) -> None:
    path = written(tmp_path, {"w": torch.zeros(2)})
    with pytest.raises(TrainingError, match=message):
        read_tensors(path, path.read_bytes(), specs)


def test_a_second_snapshot_uses_the_memory_of_the_first() -> None:
    buffers = HostBuffers()
    first = buffers.snapshot([Part("p", None, {"w": torch.zeros(1000)})])
    begin = bytes(next(iter(list(first.tensors["p.safetensors"].chunks())[1:]))[:4])
    second = buffers.snapshot([Part("p", None, {"w": torch.ones(1000)})])
    assert begin == bits(torch.zeros(1))
    assert bytes(list(first.tensors["p.safetensors"].chunks())[1][:4]) == bits(torch.ones(1))
    assert second.num_bytes == first.num_bytes


def test_the_first_save_allocates_nothing_that_was_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = rank_state("actor", 0, 1)
    state = replace(state, trainable={name: one.float() for name, one in state.trainable.items()})
    state.optimizer["state"] = {
        name: {"step": torch.tensor(1.0), "exp_avg": one.clone(), "exp_avg_sq": one.clone()}
        for name, one in state.trainable.items()
    }
    writer = RankWriter("actor", 0)
    writer.reserve(state.trainable, optimizer_is_on_card=False)
    allocated: list[int] = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, **options: allocated.append(size) or empty(size, **options))
    identity = RunIdentity(run_id="r", models={"actor": ModelIdentity(world_size=1, base_fingerprint="f", lora=None)})
    with StepCommitter(tmp_path, identity=identity, code_version="v", anchor_every=None) as committer:
        writer.save(committer.begin(1), state)
        writer.wait()
    # What the generators are made of: drawn numbers on the host, which no card waits for.
    assert allocated == [len(state.rng["torch_cpu"]) + state.rng["words"].nbytes]
