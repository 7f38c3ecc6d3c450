"""Records become strict ASCII JSON and come back as they were."""

import json
import random
import struct
from decimal import Decimal

import jsonschema
import pytest
from record_builders import breakdown, trajectory

from atlas_rl.errors import RecordError
from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.json_schema import json_schema_text
from atlas_rl.records.json_text import from_json, loads, to_json
from atlas_rl.records.trajectory import Trajectory


@pytest.mark.parametrize("text", ["\ud83d", "\ude00\ud83d", "\x00", "\U0001f600", "plain", "\\ud83d spelled"])
def test_text_comes_back_as_it_was(text: str) -> None:
    row = trajectory(answer=text, extra={text: text})
    written = to_json(row)
    assert from_json(Trajectory, written) == row
    assert written.isascii()
    assert written.decode("ascii").isprintable()


def test_the_two_readers_agree_on_every_float_bit() -> None:
    draw = random.Random(1)
    floats = [value for value in struct.unpack("<400d", draw.randbytes(3200)) if value == value and abs(value) < 1e308]
    row = trajectory(extra={"plain": floats})
    slow = trajectory(extra={"plain": floats, "emoji": "\U0001f600"})
    for written in (to_json(row), to_json(slow)):
        read = from_json(Trajectory, written).extra["plain"]
        assert struct.pack(f"<{len(read)}d", *read) == struct.pack(f"<{len(floats)}d", *floats)


@pytest.mark.parametrize(
    ("usd", "written"),
    [("0.10", "0.10"), ("1E-7", "0.0000001"), ("0.0000001", "0.0000001"), ("12", "12"), ("1E+3", "1000")],
)
def test_money_is_a_plain_decimal_string_of_equal_value(usd: str, written: str) -> None:
    text = to_json(breakdown().model_copy(update={"cost": Decimal(usd)}))
    assert json.loads(text)["cost"] == written
    assert from_json(Breakdown, text).cost == Decimal(usd)


def test_what_pydantic_itself_writes_is_read_too() -> None:
    row = trajectory(observation_text="\U0001f600")
    assert from_json(Trajectory, row.model_dump_json().encode()) == row


@pytest.mark.parametrize("text", [b'{"a": NaN}', b'{"a": -Infinity}', b"{", b""])
def test_text_that_is_not_strict_json_is_refused_in_one_line(text: bytes) -> None:
    with pytest.raises(RecordError, match=r"^not JSON: [^\n]+$"):
        loads(text)


def test_a_field_of_a_later_version_is_refused_by_its_name() -> None:
    fields = json.loads(to_json(breakdown())) | {"bonus": 1.0}
    with pytest.raises(RecordError, match=r"^not a valid Breakdown: bonus: Extra inputs are not permitted$"):
        from_json(Breakdown, json.dumps(fields).encode())


@pytest.mark.parametrize("indent", [None, 2])
def test_written_trajectories_satisfy_the_published_schema(indent: int | None) -> None:
    row = trajectory(answer="\ud83d", extra={"odds": 0.6})
    jsonschema.Draft202012Validator(json.loads(json_schema_text(Trajectory))).validate(
        json.loads(to_json(row, indent=indent))
    )
