"""Demonstrations with a note before each call, on a tokenizer that was made for them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_fixtures import SMALL

from atlas_rl.errors import DataError
from atlas_rl.grammar.compiled import compile_states
from atlas_rl.models.checks import check_episodes
from atlas_rl.models.demonstrations import Demonstration, Protocol, demonstrate
from atlas_rl.models.folder import load_model, load_tokenizer
from atlas_rl.models.tiny import benchmark_texts, build_tiny_model
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.runtime.limits import Limits
from atlas_rl.tasks.benchmark import Benchmark, load_benchmark
from atlas_rl.tasks.row import Row
from atlas_rl.tasks.urn import UrnConfig, make_rows

ROOT = Path(__file__).parents[3]
LIMITS = Limits(max_prompt_length=512, max_response_length=256)


def noted() -> Benchmark:
    return load_benchmark("urn_notes")


def noted_rows(count: int) -> list[Row]:
    return make_rows(UrnConfig(benchmark="urn_notes", num_candidates=6), count, seed=7, id_prefix="n")


def row_with(letters: str) -> Row:
    (row,) = noted_rows(1)
    pairs = zip(row.candidates, letters, strict=True)
    return row.model_copy(update={"candidates": tuple(one.model_copy(update={"answer": a}) for one, a in pairs)})


@pytest.fixture(scope="module")
def noted_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noted") / "small"
    build_tiny_model(folder, benchmark=noted(), rows=noted_rows(40), config=SMALL)
    return folder


@pytest.fixture(scope="module")
def noted_protocol(noted_dir: Path) -> Protocol:
    return Protocol(load_tokenizer(noted_dir), noted())


def played(protocol: Protocol, letters: str, num_explores: int) -> Demonstration:
    return asyncio.run(demonstrate(protocol, row_with(letters), num_explores, LIMITS))


def test_every_turn_opens_with_the_note_on_what_is_revealed(noted_protocol: Protocol) -> None:
    demonstration = played(noted_protocol, "ABBCCC", 2)
    letter = {name: noted_protocol.template.encode_text(name) for name in "AB"}
    assert demonstration.response_ids == (
        *noted_protocol.call_ids("explore", {}),
        *noted_protocol.template.observation_ids("A"),
        *letter["A"],
        *noted_protocol.call_ids("explore", {}),
        *noted_protocol.template.observation_ids("B"),
        *letter["A"],
        *letter["B"],
        *noted_protocol.call_ids("submit", {"answer": "A"}),
    )
    #                                       explore  observation  note and explore  observation  note and submit
    assert demonstration.response_mask == (*[1] * 4, *[0] * 8, *[1] * (1 + 4), *[0] * 8, *[1] * (2 + 6))


def test_a_note_is_one_token_a_letter(noted_protocol: Protocol) -> None:
    assert [len(noted_protocol.note_ids("ABCDABCD"[:k])) for k in range(9)] == list(range(9))


def test_the_answer_tokens_are_those_of_the_call_whatever_the_note_says(noted_protocol: Protocol) -> None:
    demonstration = played(noted_protocol, "BBACCC", 3)
    answer = demonstration.response_ids[-demonstration.num_answer_tokens :]
    assert noted_protocol.template.decode(answer) == 'B"}}\n</tool_call><|im_end|>'


def test_the_grammar_of_each_state_takes_the_demonstrators_turns(noted_protocol: Protocol, noted_dir: Path) -> None:
    tokenizer = load_tokenizer(noted_dir)
    compiled = compile_states(
        noted_protocol.grammar, noted_protocol.tokens, tokenizer, vocab_size=load_model(noted_dir).config.vocab_size
    )
    explore = noted_protocol.call_ids("explore", {})
    submit = noted_protocol.call_ids("submit", {"answer": "D"})
    assert compiled.accepts(EpisodeState.FIRST, explore)
    assert compiled.accepts(EpisodeState.OPEN, (*noted_protocol.note_ids("ABD"), *explore))
    assert compiled.accepts(EpisodeState.EXHAUSTED, (*noted_protocol.note_ids("ABCDDA"), *submit))
    too_long = noted_protocol.note_ids("ABCDABCD") * 2 + noted_protocol.note_ids("A")
    assert not compiled.accepts(EpisodeState.OPEN, (*too_long, *explore))


def test_a_note_longer_than_the_grammar_allows_is_refused(noted_protocol: Protocol, noted_dir: Path) -> None:
    short = noted().model_copy(update={"max_text_tokens": 2})
    protocol = Protocol(load_tokenizer(noted_dir), short)
    assert protocol.note_ids("AB") == noted_protocol.note_ids("AB")
    with pytest.raises(DataError, match=r"note on \['A', 'B', 'C'\] has 3 tokens, max_text_tokens=2; raise it"):
        protocol.note_ids("ABC")


def test_a_benchmark_without_notes_writes_none(protocol: Protocol) -> None:
    assert protocol.note_ids("ABC") == ()


def test_the_tokenizer_is_trained_on_the_notes_too(noted_protocol: Protocol) -> None:
    def turns_of(benchmark: Benchmark) -> list[str]:
        texts = list(benchmark_texts(benchmark, [row_with("ABBCCC")]))
        return [text.removeprefix("assistant\n") for text in texts if text.startswith("assistant\n")]

    assert turns_of(noted()) == ["", "A", "AB", "ABB", "ABBC", "ABBCC", "ABBCCC"]
    assert turns_of(load_benchmark("urn")) == [""] * 7


def test_the_experiments_budgets_hold_the_longest_texts_that_its_grammar_allows(noted_protocol: Protocol) -> None:
    experiment = yaml.safe_load((ROOT / "configs" / "experiment" / "urn_notes.yaml").read_text(encoding="utf-8"))
    longest = played(noted_protocol, "ABCDAB", 6)
    #                                    six explores and a submit       notes of 0 to 6 letters
    assert len(longest.response_ids) == 6 * (4 + 8) + 6 + 21
    texts = 7 * (noted().max_text_tokens or 0)
    assert len(longest.response_ids) - 21 + texts <= experiment["data"]["max_response_length"]
    assert len(longest.prompt_ids) <= 64


def test_a_model_that_writes_no_note_has_wrong_ones_wherever_a_letter_is_revealed(
    noted_dir: Path, noted_protocol: Protocol
) -> None:
    check = asyncio.run(check_episodes(load_model(noted_dir), noted_protocol, noted_rows(2), LIMITS, seed=0))
    # Untrained, it rambles to the end of its budget in its first turn.
    assert (check.num_episodes, check.submitted_share, check.wrong_notes_per_episode) == (2, 0.0, 1.0)


def test_right_notes_are_counted_as_right(noted_protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    from atlas_rl.models import checks
    from atlas_rl.models.demonstrations import demonstrator

    scripts: list[Any] = [demonstrator(noted_protocol, list(history), "A") for history in ("ABB", "AB", "CBB")]
    monkeypatch.setattr(checks, "local_generate", lambda model, stop_ids: scripts.pop(0))
    rows = [row_with("ABBCCC")] * 3
    check = asyncio.run(check_episodes(None, noted_protocol, rows, LIMITS, seed=0))
    # The third script believes in a C where an A was revealed: its notes of 1, 2 and 3 letters are wrong.
    assert check.wrong_notes_per_episode == 1.0
    assert check.mean_explores == pytest.approx(8 / 3)
