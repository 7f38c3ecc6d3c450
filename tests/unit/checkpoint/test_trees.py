"""Nested values come back as the same types with the same bits, or are refused by the path of their place."""

import json
import math
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_states import same

from atlas_rl.checkpoint.tree import decode, encode
from atlas_rl.errors import TrainingError


def there_and_back(value: object) -> Any:
    document, tensors = encode(value)
    return decode(json.loads(json.dumps(document, allow_nan=False)), tensors)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(2**80), "", "é\ud800", 0.1, -0.0, 5e-324, math.inf, -math.inf, math.nan,
        [], {}, (), [()], {"a": (1, [2.0, {"b": None}])}, {0: 1, 1: {2: "x"}}, {"$": "tensor"}, {"a": {"$": 1}},
        b"", b"\x00\xff", {"a/b": b"1", "a": {"b": b"2"}}, {"~": b"1", "~0": b"2"},
        np.float64(0.1), np.int64(3), np.bool_(True), np.arange(6, dtype=np.uint32).reshape(2, 3),
        np.array([], np.float32), torch.tensor(1.5), torch.zeros(0, 3), torch.arange(3),
        torch.tensor([1, 2]).bfloat16(),
    ],
    ids=repr,
)  # fmt: skip
def test_a_value_comes_back_as_it_was(value: object) -> None:
    assert same(there_and_back(value), value)
    assert same(there_and_back({"inside": [value]}), {"inside": [value]})


def test_the_order_of_keys_is_kept() -> None:
    assert list(there_and_back({"b": 1, "a": 2})) == ["b", "a"]
    assert list(there_and_back({2: 1, "a": 2, 1: 3})) == [2, "a", 1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"a": [object()]},
            "state at /a/0: object would not come back as it is; give plain values, tensors, arrays or bytes",
        ),
        ({"s": {1}}, "state at /s: set would not"),
        (OrderedDict(a=1), "state at /: OrderedDict would not"),
        ([defaultdict(int)], "state at /0: defaultdict would not"),
        (np.array(["text"]), "state at /: ndarray <U4 would not"),
        (np.array([1.0]).astype(">f8"), "state at /: ndarray >f8 would not"),
        ({(1, 2): 3}, "state at /: key (1, 2) is a tuple; give strings or ints"),
        ({"k": {True: 1}}, "state at /k: key True is a bool; give strings or ints"),
        ({1: b"x", "1": b"y"}, "state at /1: two places have this path; name their keys apart"),
    ],
)
def test_what_would_not_come_back_is_refused_by_its_place(value: object, message: str) -> None:
    with pytest.raises(TrainingError) as refused:
        encode(value)
    assert str(refused.value).startswith(message)


def test_a_value_that_holds_itself_is_refused() -> None:
    ring: list[object] = []
    ring.append(ring)
    with pytest.raises(TrainingError, match="a value that holds itself"):
        encode(ring)


def test_a_document_whose_tensor_is_missing_is_refused() -> None:
    document, _ = encode({"a": torch.zeros(1)})
    with pytest.raises(TrainingError, match=r"state at /a: .* stands for nothing that was saved"):
        decode(document, {})
