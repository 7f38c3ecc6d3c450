from pathlib import Path

import pytest

from atlas_rl.errors import ConfigError
from atlas_rl.tasks.benchmark import BENCHMARKS, load_benchmark
from atlas_rl.tasks.notes import NOTES, expected_note
from atlas_rl.tasks.urn import UrnConfig, make_rows


@pytest.mark.parametrize(
    ("history", "note"), [([], ""), (["A"], "A"), (["A", "B", "A"], "ABA"), (["B", "A", "A"], "BAA")]
)
def test_the_note_is_the_letters_revealed_so_far_in_order(history: list[str], note: str) -> None:
    assert expected_note(history) == note


def test_other_letters_or_another_order_have_another_note() -> None:
    histories = [[a, b, c] for a in "ABCD" for b in "ABCD" for c in "ABCD"]
    assert len({expected_note(history) for history in histories}) == 64


def test_urn_notes_has_the_tools_of_the_urn_and_room_for_twice_the_longest_note() -> None:
    urn, noted = load_benchmark("urn"), load_benchmark("urn_notes")
    changed = {name for name in type(urn).model_fields if getattr(urn, name) != getattr(noted, name)}
    assert changed == {"name", "max_text_tokens", "note"}
    assert NOTES["revealed"] is expected_note
    assert (noted.note, noted.max_text_tokens) == ("revealed", 2 * 8)


def test_no_other_benchmark_has_notes() -> None:
    names = sorted(file.stem for file in BENCHMARKS.glob("*.yaml"))
    assert [name for name in names if load_benchmark(name).note is not None] == ["urn_notes"]


def test_an_urn_names_the_benchmark_that_it_is_drawn_for() -> None:
    config = UrnConfig(benchmark="urn_notes", num_candidates=6)
    plain = UrnConfig(num_candidates=6)
    rows, plain_rows = (make_rows(one, 3, seed=1, id_prefix="n") for one in (config, plain))
    assert [row.benchmark for row in rows] == ["urn_notes"] * 3
    assert [row.candidates for row in rows] == [row.candidates for row in plain_rows]


def test_a_note_that_is_not_known_is_refused(tmp_path: Path) -> None:
    text = (BENCHMARKS / "urn_notes.yaml").read_text(encoding="utf-8").replace("note: revealed", "note: hidden")
    path = tmp_path / "wrong.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="note Input should be 'revealed'"):
        load_benchmark(str(path))
