"""What run.json must hold for a rollout to be checked."""

import pytest
from boundary_stage import LIMITS, SESSIONS, manifest, world

from atlas_rl.errors import RecordError
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.reporting.rollout_promises import read_promises


def test_limits_tokens_and_grammars_come_from_run_json() -> None:
    promises = read_promises(manifest(5))
    here = world()
    assert (promises.max_prompt_length, promises.max_response_length, promises.max_turns) == (
        LIMITS.max_prompt_length, LIMITS.max_response_length, LIMITS.max_turns,
    )  # fmt: skip
    assert (promises.call_begin_id, promises.call_end_id) == (here.tokens.call_begin_id, here.tokens.call_end_id)
    assert promises.grammar_names("urn_boundary", EpisodeState.FIRST) == {here.grammar[EpisodeState.FIRST].sha256}
    assert promises.num_val_episodes == 5 * SESSIONS


def test_samples_that_validation_leaves_out_are_not_expected() -> None:
    started = manifest(5, 3)
    config = {**started.config, "data": {**started.config["data"], "val_max_samples": 2}}
    assert read_promises(started.model_copy(update={"config": config})).num_val_episodes == 6


def test_without_a_grammar_no_generation_names_one() -> None:
    assert read_promises(manifest(5, grammar=False)).grammar_names("urn_boundary", EpisodeState.OPEN) == {None}


def test_a_benchmark_without_a_grammar_in_run_json_stops_the_check() -> None:
    with pytest.raises(RecordError, match=r"no grammar hash 'gsm8k/open'"):
        read_promises(manifest(5)).grammar_names("gsm8k", EpisodeState.OPEN)


@pytest.mark.parametrize("value", [None, "128", True, 1.5])
def test_a_limit_of_another_type_stops_the_check(value: object) -> None:
    started = manifest(5)
    config = {**started.config, "data": {**started.config["data"], "max_response_length": value}}
    with pytest.raises(RecordError, match=r"^run\.json: data\.max_response_length="):
        read_promises(started.model_copy(update={"config": config}))


def test_a_key_that_is_not_there_is_named() -> None:
    started = manifest(5)
    config = {name: node for name, node in started.config.items() if name != "atlas"}
    with pytest.raises(RecordError, match=r"^run\.json: atlas\.reward is not there"):
        read_promises(started.model_copy(update={"config": config}))
