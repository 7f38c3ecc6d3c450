"""A command line becomes one complete configuration, or one line that says what is wrong with it."""

from pathlib import Path

import pytest
from start_of_a_run import unresolved

from atlas_rl.cli.composition import complete, compose
from atlas_rl.errors import ConfigError, UsageError


def refusal(*arguments: str) -> str:
    """What the command line is refused with."""
    with pytest.raises(ConfigError) as caught:
        compose(arguments)
    return str(caught.value)


def incompletion(*overrides: str, **changes: object) -> str:
    """What the demo's configuration with changes, as an experiment file could make them, is refused with."""
    with pytest.raises(ConfigError) as caught:
        complete(unresolved(**changes), overrides)
    return str(caught.value)


def test_an_unknown_key_of_verl_is_answered_with_the_near_one() -> None:
    assert refusal("experiment=urn_demo", "actor_rollout_ref.actor.optim.lrr=1e-4") == (
        "unknown key actor_rollout_ref.actor.optim.lrr; did you mean actor_rollout_ref.actor.optim.lr? (a key that "
        "verl reads but does not list is written +actor_rollout_ref.actor.optim.lrr=VALUE)"
    )


def test_a_wrong_experiment_is_answered_with_the_known_ones() -> None:
    known = ", ".join(sorted(file.stem for file in Path("configs/experiment").glob("*.yaml")))
    assert refusal("experiment=urn_dmo") == f"experiment=urn_dmo is not known; use one of: {known}"


def test_an_argument_without_a_value_is_a_wrong_use() -> None:
    with pytest.raises(UsageError) as caught:
        compose(["atlas.run.id"])
    assert str(caught.value) == "argument 'atlas.run.id': missing EQUAL at '<EOF>'; write key=value"


def test_what_is_composed_is_resolved_and_open_for_what_the_run_adds() -> None:
    demo = complete(unresolved())
    assert demo.trainer.experiment_name == "test"
    assert demo.actor_rollout_ref.rollout.response_length == 500
    demo.actor_rollout_ref.a_new_key = 1


def test_a_value_that_must_be_given_is_named() -> None:
    assert incompletion(**{"atlas.run.id": "???", "data.val_files": None}) == (
        "atlas.run.id, data.val_files must be set; give atlas.run.id=VALUE data.val_files=VALUE, or an experiment=NAME "
        "that sets it"
    )


def test_an_unknown_key_of_an_experiment_file_is_refused_although_hydra_lets_it_pass() -> None:
    assert incompletion(**{"trainer.total_trainning_steps": 3}) == (
        "unknown key trainer.total_trainning_steps; did you mean trainer.total_training_steps?"
    )
    assert incompletion(**{"actor_rollout_ref.rollout.enable_slep_mode": False}) == (
        "unknown key actor_rollout_ref.rollout.enable_slep_mode; did you mean "
        "actor_rollout_ref.rollout.enable_sleep_mode?"
    )


def test_a_key_that_verl_reads_but_does_not_list_may_be_added_on_the_command_line() -> None:
    added = {"data.cache_dir": "/tmp/cache"}
    assert incompletion(**added).startswith("unknown key data.cache_dir; ")
    assert complete(unresolved(**added), ["+data.cache_dir=/tmp/cache"]).data.cache_dir == "/tmp/cache"


def test_a_key_that_no_dataclass_of_verl_takes_cannot_be_added() -> None:
    assert incompletion("+critic.optim.momentun=1", **{"critic.optim.momentun": 1}).startswith(
        "unknown key critic.optim.momentun; known there: _target_, betas, "
    )


def test_a_free_node_takes_any_key() -> None:
    free = {
        "actor_rollout_ref.rollout.engine_kwargs.vllm.seed": 1,
        "ray_kwargs.ray_init.address": "auto",
        "critic.model.override_config.attention_dropout": 0.0,
    }
    assert complete(unresolved(**free)).ray_kwargs.ray_init.address == "auto"


def test_a_value_in_place_of_a_node_is_refused() -> None:
    assert incompletion(**{"trainer.v1": "sync"}) == (
        "trainer.v1 must be a mapping, got 'sync'; it holds colocate_async, sampler, separate_async, sync, trainer_mode"
    )


def test_a_reference_to_nowhere_names_its_key() -> None:
    assert incompletion(**{"trainer.nnodes": "${cluster.nodes}"}) == (
        "trainer.nnodes=${cluster.nodes}: Interpolation key 'cluster.nodes' not found; correct the reference"
    )
