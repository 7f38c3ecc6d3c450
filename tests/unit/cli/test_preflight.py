"""The checks as one: what they find out, and in which order they refuse."""

from pathlib import Path
from typing import Any

import pytest
from start_of_a_run import config, model_folder, refusal, run_files

from atlas_rl.adapters.init import init_adapters
from atlas_rl.cli.preflight import preflight
from atlas_rl.training.config import atlas_config

PATH = "actor_rollout_ref.model.path"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_files(tmp_path_factory.mktemp("run"))


def test_a_run_that_may_start_is_described_for_its_manifest(given: dict[str, Any]) -> None:
    demo = config(**given)
    prepared = preflight(demo, atlas_config(demo))
    assert sorted(prepared.grammar_hashes) == ["urn/exhausted", "urn/first", "urn/open"]
    assert (prepared.num_train_rows, prepared.num_val_rows) == (5, 2)
    assert [rows for _, rows in prepared.files.values()] == [5, 2]
    assert list(prepared.files) == [given["data.train_files"], given["data.val_files"]]
    assert list(prepared.model_fingerprints) == [PATH, "critic.model.path"]
    assert len(set(prepared.model_fingerprints.values())) == 1
    assert sorted(prepared.protocol_token_ids) == ["call_begin", "call_end", "control", "end_of_turn", "stop"]
    assert prepared.protocol_token_ids["stop"] == [prepared.protocol_token_ids["end_of_turn"]]
    assert 0 < prepared.longest_prompt <= 1000


def test_without_a_grammar_nothing_is_compiled_and_the_hashes_stay(given: dict[str, Any]) -> None:
    free = config(**given, **{"atlas.runtime.grammar": False})
    bound = config(**given)
    assert preflight(free, atlas_config(free)) == preflight(bound, atlas_config(bound))


def test_keys_are_looked_at_before_folders_and_folders_before_files(given: dict[str, Any]) -> None:
    wrong = {"data.train_files": "no.parquet", PATH: "no-model", "algorithm.adv_estimator": "grpo"}
    assert refusal(config(**{**given, **wrong})).startswith("algorithm.adv_estimator=grpo: ")
    del wrong["algorithm.adv_estimator"]
    assert refusal(config(**{**given, **wrong})).startswith(f"{PATH}=no-model: no such folder; ")
    del wrong[PATH]
    assert refusal(config(**{**given, **wrong})).startswith("data.train_files=no.parquet: no such file; ")


def test_a_context_shorter_than_the_longest_row_is_refused(given: dict[str, Any]) -> None:
    key = "actor_rollout_ref.rollout.max_model_len"
    assert refusal(config(**given, **{key: 1499})) == (
        f"{key}=1499 is less than data.max_prompt_length + data.max_response_length = 1500 tokens; raise it, or lower "
        "one of the two"
    )
    assert refusal(config(**given, **{key: 2049})) == (
        f"{key}=2049 must lie between 1 and max_position_embeddings=2048 of {given[PATH]}/config.json; "
        f"set {key}=null to use all of it"
    )


def test_a_model_shorter_than_the_longest_row_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    short = model_folder(tmp_path / "short", max_position_embeddings=1024)
    assert refusal(config(**{**given, PATH: short})) == (
        f"{short}/config.json: max_position_embeddings=1024 is less than data.max_prompt_length + "
        "data.max_response_length = 1500 tokens; lower one of the two"
    )


def test_an_adapter_to_start_from_must_be_one_and_of_this_base(given: dict[str, Any], tmp_path: Path) -> None:
    key = "actor_rollout_ref.model.lora_adapter_path"
    assert refusal(config(**given, **{key: str(tmp_path / "none")})).startswith(f"{key}: adapter {tmp_path}/none")
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    base = model_folder(tmp_path / "base", **shape, num_key_value_heads=2, head_dim=16)
    init_adapters(Path(base), tmp_path / "adapters", 4, 8, ["q_proj"], 0, base_fingerprint="e" * 64)
    said = refusal(config(**given, **{key: str(tmp_path / "adapters" / "actor")}))
    assert said.startswith(f"{key}: adapter {tmp_path}/adapters/actor was made for the base {'e' * 64}, this one is ")


def test_the_critic_needs_an_embedding_for_every_token_too(given: dict[str, Any], tmp_path: Path) -> None:
    small = model_folder(tmp_path / "small", vocab_size=100)
    assert refusal(config(**{**given, "critic.model.path": small})).startswith(f"{small}/config.json: vocab_size=100, ")


def test_an_unknown_potential_is_refused(given: dict[str, Any]) -> None:
    demo = config(**given, **{"atlas.reward.potentials": {"tabel": 1}})
    assert refusal(demo) == (
        "reward.potentials.tabel is not known; use one of: zero, or name its file: "
        "atlas.potentials.tabel.path=FILE.parquet"
    )


def test_a_folder_of_weights_without_a_tokenizer_is_refused(given: dict[str, Any], tmp_path: Path) -> None:
    bare = model_folder(tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    assert refusal(config(**{**given, PATH: bare})).startswith(f"{PATH}={bare}: no tokenizer there ")
    key = "actor_rollout_ref.model.tokenizer_path"
    elsewhere = config(**{**given, PATH: bare, key: given[PATH]})
    assert preflight(elsewhere, atlas_config(elsewhere)).num_val_rows == 2


def test_a_reserve_needs_a_budget_that_holds_the_longest_call(given: dict[str, Any]) -> None:
    # <tool_call> and </tool_call> and the end of turn, and one token a byte of the call between them.
    longest = 3 + len('\n{"name": "submit", "arguments": {"answer": "A"}}\n')
    budget = "data.max_response_length"
    small = {budget: longest - 1, "actor_rollout_ref.rollout.response_length": longest - 1}
    reserve = {"atlas.runtime.reserve_call": True}
    assert refusal(config(**given, **small, **reserve)) == (
        f"atlas.runtime.reserve_call=true: the longest call of benchmark_spec 'urn' takes {longest} tokens, more than "
        f"{budget}={longest - 1}; raise it, lower the maxLength of its strings, or set atlas.runtime.reserve_call=false"
    )
    free = config(**given, **small)
    assert preflight(free, atlas_config(free)).num_val_rows == 2


def test_with_a_reserve_the_manifest_names_the_rungs_too(given: dict[str, Any]) -> None:
    bounded = config(**given, **{"atlas.runtime.reserve_call": True, "atlas.runtime.max_text_tokens": 3})
    hashes = preflight(bounded, atlas_config(bounded)).grammar_hashes
    assert sorted(hashes) == sorted(
        f"urn/{state}{rung}"
        for state in ("first", "open", "exhausted")
        for rung in ("", "/text_2", "/text_1", "/text_0")
    )
    plain = config(**given)
    assert hashes["urn/open/text_0"] == preflight(plain, atlas_config(plain)).grammar_hashes["urn/open"]
