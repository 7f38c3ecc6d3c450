"""Safetensors files of our own writer: read by the library, equal every time, one tensor in memory."""

import hashlib
import json
import resource
import weakref
from pathlib import Path

import pytest
import torch
from adapter_models import bits, same_bits
from safetensors import safe_open
from safetensors.torch import load_file

from atlas_rl.adapters.tensor_file import DTYPE_CODES, TensorSpec, write_tensors
from atlas_rl.errors import ConfigError

TENSORS = {
    "odd": torch.arange(3, dtype=torch.uint8),
    "wide": torch.linspace(-1, 1, 12).reshape(3, 4),
    "across": torch.linspace(-1, 1, 12).reshape(3, 4).t(),
    "half": torch.linspace(-1, 1, 5, dtype=torch.bfloat16),
    "one": torch.tensor(2.5),
    "none": torch.zeros(0, 4),
    "count": torch.tensor([7, -7]),
    "flags": torch.tensor([True, False, True]),
    "eighth": torch.tensor([0.5, 1.0]).to(torch.float8_e4m3fn),
}


def specs(tensors: dict[str, torch.Tensor]) -> list[TensorSpec]:
    return [TensorSpec(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()]


def test_the_library_reads_back_every_bit(tmp_path: Path) -> None:
    digests = write_tensors(tmp_path / "x", specs(TENSORS), TENSORS.__getitem__, {"format": "pt", "base": "b"})
    assert same_bits(load_file(tmp_path / "x"), TENSORS)
    with safe_open(tmp_path / "x", "pt") as file:
        assert file.metadata() == {"format": "pt", "base": "b"}
    assert digests.file == hashlib.sha256((tmp_path / "x").read_bytes()).hexdigest()
    assert digests.tensors == {name: hashlib.sha256(bits(value)[1]).hexdigest() for name, value in TENSORS.items()}


def test_every_tensor_starts_at_a_multiple_of_its_item_size(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", specs(TENSORS), TENSORS.__getitem__, {})
    content = (tmp_path / "x").read_bytes()
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    for name, tensor in TENSORS.items():
        assert (8 + length + head[name]["data_offsets"][0]) % tensor.dtype.itemsize == 0


def test_the_order_in_which_tensors_are_named_changes_nothing(tmp_path: Path) -> None:
    one = write_tensors(tmp_path / "1", specs(TENSORS), TENSORS.__getitem__, {"a": "1", "b": "2"})
    two = write_tensors(tmp_path / "2", specs(TENSORS)[::-1], TENSORS.__getitem__, {"b": "2", "a": "1"})
    assert one.file == two.file


def test_no_tensor_is_kept_while_the_next_is_loaded(tmp_path: Path) -> None:
    given: list[weakref.ref[torch.Tensor]] = []

    def load(name: str) -> torch.Tensor:
        assert [ref() for ref in given] == [None] * len(given)
        tensor = torch.full((4, 4), float(name))
        given.append(weakref.ref(tensor))
        return tensor

    names = ["1", "2", "3"]
    write_tensors(tmp_path / "x", [TensorSpec(name, (4, 4), torch.float32) for name in names], load, {})
    assert len(given) == 3


def test_a_disk_that_is_full_is_one_line(tmp_path: Path) -> None:
    big = {"big": torch.zeros(100_000)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(ConfigError) as caught:
            write_tensors(tmp_path / "x", specs(big), big.__getitem__, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value) == f"{tmp_path}/x: cannot be written: File too large; free space or choose another"


def test_every_dtype_has_the_librarys_word(tmp_path: Path) -> None:
    tensors = {code: torch.zeros(2).to(dtype) for dtype, code in DTYPE_CODES.items()}
    write_tensors(tmp_path / "x", specs(tensors), tensors.__getitem__, {})
    assert {name: value.dtype for name, value in load_file(tmp_path / "x").items()} == {
        code: dtype for dtype, code in DTYPE_CODES.items()
    }
