"""A metrics line is whole, or known to be cut."""

import json
from contextlib import closing
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from atlas_rl.errors import RecordError
from atlas_rl.reporting.metrics import MetricsLog, read_metrics


def log_of(path: Path, *steps: int) -> Path:
    with closing(MetricsLog(path)) as log:
        for step in steps:
            log.write(step, {"loss": step / 4})
    return path


def test_each_step_is_one_line_with_its_time(tmp_path: Path) -> None:
    path = log_of(tmp_path / "run" / "metrics.jsonl", 1, 2)
    lines = [json.loads(line) for line in path.read_text("ascii").splitlines()]
    assert [(line["step"], line["loss"], list(line)) for line in lines] == [
        (1, 0.25, ["step", "time", "loss"]),
        (2, 0.5, ["step", "time", "loss"]),
    ]
    assert datetime.fromisoformat(lines[0]["time"]).utcoffset() is not None
    assert list(read_metrics(path).lines) == lines


def test_numbers_of_numpy_and_booleans_are_numbers(tmp_path: Path) -> None:
    with closing(MetricsLog(tmp_path / "m.jsonl")) as log:
        log.write(1, {"a": np.float32(0.5), "b": np.int64(7), "c": True, "d": 2})
    (line,) = read_metrics(tmp_path / "m.jsonl").lines
    assert {key: line[key] for key in "abcd"} == {"a": 0.5, "b": 7, "c": 1, "d": 2}


def test_a_value_that_is_not_finite_becomes_null_and_is_named(tmp_path: Path) -> None:
    with closing(MetricsLog(tmp_path / "m.jsonl")) as log:
        log.write(1, {"a": float("nan"), "b": float("-inf"), "c": 1.0})
    (line,) = read_metrics(tmp_path / "m.jsonl").lines
    assert (line["a"], line["b"], line["c"], line["nonfinite"]) == (None, None, 1.0, ["a", "b"])


@pytest.mark.parametrize("value", ["0.5", None, [1.0], np.zeros(2)])
def test_what_is_no_number_is_refused_and_nothing_is_written(tmp_path: Path, value: object) -> None:
    match = r"step 3: metric 'a' is .*; log numbers only"
    with closing(MetricsLog(tmp_path / "m.jsonl")) as log, pytest.raises(RecordError, match=match):
        log.write(3, {"a": value})
    assert (tmp_path / "m.jsonl").read_bytes() == b""


def test_a_metric_cannot_take_the_place_of_the_step(tmp_path: Path) -> None:
    match = "metric 'step' uses a reserved key"
    with closing(MetricsLog(tmp_path / "m.jsonl")) as log, pytest.raises(RecordError, match=match):
        log.write(3, {"step": 4})


def test_a_file_cut_at_any_byte_gives_its_whole_lines_before_and_after_a_resume(tmp_path: Path) -> None:
    path = log_of(tmp_path / "m.jsonl", 1, 2)
    data = path.read_bytes()
    first_end = data.index(b"\n") + 1
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        # A line that lacks only its newline is whole.
        whole = [1][: cut >= first_end - 1] + [2][: cut >= len(data) - 1]
        torn = [] if cut in (0, first_end - 1, first_end, len(data) - 1) else [len(whole) + 1]
        read = read_metrics(path)
        assert ([line["step"] for line in read.lines], list(read.torn)) == (whole, torn), cut
        log_of(path, 3)
        read = read_metrics(path)
        assert ([line["step"] for line in read.lines], list(read.torn)) == ([*whole, 3], torn), cut


def test_damage_above_the_last_line_is_refused_by_its_number(tmp_path: Path) -> None:
    path = log_of(tmp_path / "m.jsonl", 1, 2, 3)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:9], *lines[2:]]))
    with pytest.raises(RecordError, match=r"m\.jsonl line 2: .* is no JSON object"):
        read_metrics(path)
