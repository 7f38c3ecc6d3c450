"""Engine arguments that would take the grammar away, each refused in one line before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest
from start_of_a_run import config, refusal, run_files

from atlas_rl.cli.engine_keys import check_engine_keys
from atlas_rl.cli.preflight import preflight
from atlas_rl.errors import ConfigError
from atlas_rl.training.config import atlas_config

ROLLOUT = "actor_rollout_ref.rollout"
VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
OUTPUTS = f"{VLLM}.structured_outputs_config"
DRAFTS = "draft tokens can leave the grammar or end the request"
REASONING = "a reasoning parser switches the grammar off until it sees the reasoning end"
UNDER_GRAMMAR: list[tuple[str, Any, str, str]] = [
    # gram-08
    ("speculative_config", {"method": "ngram", "num_speculative_tokens": 4}, "{'method': 'ngram'", DRAFTS),
    ("speculative-config", '{"method": "ngram"}', '{"method": "ngram"}', DRAFTS),
    ("spec_method", "ngram", "ngram", DRAFTS),
    ("spec_tokens", 4, "4", DRAFTS),
    ("num_speculative_tokens", 4, "4", DRAFTS),
    # gram-09
    ("reasoning_parser", "qwen3", "qwen3", REASONING),
    ("reasoning-parser-plugin", "mine.py", "mine.py", REASONING),
    ("structured_outputs_config.reasoning_parser", "qwen3", "qwen3", REASONING),
    ("min_tokens", 1, "1", "a minimum forbids the end of turn where it is the only legal token"),
    ("skip_tokenizer_init", True, "true", "without a tokenizer the engine cannot compile a grammar"),
    ("guided_decoding_backend", "outlines", "outlines", "vLLM 0.26 does not know it and would not start"),
    ("guided_decoding_disable_fallback", True, "true", "vLLM 0.26 does not know it"),
    ("diffusion_config", {"canvas_length": 4}, "{'canvas_length': 4}", "a canvas of tokens"),
    ("structured_outputs_config.disable_fallback", True, "true", "it is not provided for beside a structural tag"),
    ("structured_outputs_config.disable_additional_properties", True, "true", "it is not provided for"),
]
ALWAYS: list[tuple[str, Any, str, str]] = [
    ("tokenizer", "elsewhere", "elsewhere", "the engine would use another tokenizer than the one that was checked"),
    ("tokenizer_mode", "mistral", "mistral", "the engine would use another tokenizer"),
    ("generation_config", "elsewhere", "elsewhere", "the engine's stop ids are read from the model's own"),
    ("override_generation_config", {"min_new_tokens": 3}, "{'min_new_tokens': 3}", "every request states its own"),
]


@pytest.mark.parametrize(("key", "value", "shown", "reason"), [*UNDER_GRAMMAR, *ALWAYS])
def test_an_argument_that_takes_the_grammar_away_is_refused_with_the_reason(
    key: str, value: Any, shown: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_engine_keys(config(**{f"{VLLM}.{key}": value}), is_constrained=True)
    message = str(caught.value)
    assert message.startswith(f"{VLLM}.{key}={shown}")
    assert reason in message
    assert message.endswith("; take it out")
    assert "\n" not in message


@pytest.mark.parametrize(("key", "value", "shown", "reason"), UNDER_GRAMMAR)
def test_without_a_grammar_it_may_stand(key: str, value: Any, shown: str, reason: str) -> None:
    check_engine_keys(config(**{f"{VLLM}.{key}": value}), is_constrained=False)


@pytest.mark.parametrize(("key", "value", "shown", "reason"), ALWAYS)
def test_another_tokenizer_or_other_stop_ids_are_refused_without_a_grammar_too(
    key: str, value: Any, shown: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"{key}="):
        check_engine_keys(config(**{f"{VLLM}.{key}": value}), is_constrained=False)


def test_drafts_of_verls_own_are_refused() -> None:
    mtp = {"enable": True, "enable_rollout": True}
    with pytest.raises(ConfigError) as caught:
        check_engine_keys(config(**{f"{ROLLOUT}.mtp": mtp}), is_constrained=True)
    assert str(caught.value) == (f"{ROLLOUT}.mtp.enable_rollout=true: {DRAFTS}; set {ROLLOUT}.mtp.enable_rollout=false")
    check_engine_keys(config(**{f"{ROLLOUT}.mtp": {**mtp, "enable_rollout": False}}), is_constrained=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("speculative_config", None),
        ("reasoning_parser", ""),
        ("skip_tokenizer_init", False),
        ("structured_outputs_config.disable_any_whitespace", False),
        ("structured_outputs_config.reasoning_parser", ""),
        ("tokenizer_mode", "auto"),
        ("max_logprobs", 4),
        ("scheduler_cls", "some.scheduler"),
    ],
)
def test_what_changes_nothing_may_stand(key: str, value: Any) -> None:
    check_engine_keys(config(**{f"{VLLM}.{key}": value}), is_constrained=True)


@pytest.mark.parametrize(
    "backend", ["auto", "guidance", "outlines", "lm-format-enforcer", None, '{"backend": "xgrammar"}']
)
def test_another_backend_is_refused(backend: str | None, given: dict[str, Any]) -> None:
    key = OUTPUTS if backend is not None and backend.startswith("{") else f"{OUTPUTS}.backend"
    assert refusal(config(**given, **{key: backend})).startswith(f"{OUTPUTS}.backend=")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_files(tmp_path_factory.mktemp("run"))


def stops(given: dict[str, Any], content: Any) -> Path:
    path = Path(given["actor_rollout_ref.model.path"]) / "generation_config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_second_stop_id_of_the_tokenizer_is_part_of_the_protocol(given: dict[str, Any]) -> None:
    run = config(**given)
    end = preflight(run, atlas_config(run)).protocol_token_ids["end_of_turn"]
    path = stops(given, {"eos_token_id": [end, end - 2]})  # <|im_end|> and <|endoftext|>
    try:
        assert preflight(run, atlas_config(run)).protocol_token_ids["stop"] == [end, end - 2]
        stops(given, {"eos_token_id": end})
        assert preflight(run, atlas_config(run)).protocol_token_ids["stop"] == [end]
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"eos_token_id": [9999]}, "stop ids [9999] are no tokens of the tokenizer; take them out of"),
        ({"eos_token_id": [65]}, "stop ids [65] are ordinary tokens, so text could end a turn by accident"),
        ({"eos_token_id": "<|im_end|>"}, "eos_token_id is '<|im_end|>'; write token ids"),
        ([], "must hold a JSON object, got list; save the model again"),
        ("{", "no JSON: "),
    ],
)
def test_a_stop_id_that_no_grammar_keeps_out_of_text_is_refused_with_its_file(
    content: Any, message: str, given: dict[str, Any]
) -> None:
    path = stops(given, content)
    try:
        assert refusal(config(**given)).startswith(f"{path}: {message}")
    finally:
        path.unlink()
