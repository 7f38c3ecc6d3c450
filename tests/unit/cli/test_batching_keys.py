"""Every key about splitting batches or clipping gradients takes effect, or is refused with the one that does."""

from pathlib import Path
from typing import Any

import pytest
from start_of_a_run import config, refusal, run_files, unresolved

from atlas_rl.cli.batching_keys import check_batching_keys
from atlas_rl.cli.composition import complete
from atlas_rl.errors import ConfigError

A, R, REF, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref", "model"))
UPDATE, FORWARD = "critic.ppo_max_token_len_per_gpu", "critic.forward_max_token_len_per_gpu"
LONGEST = "data.max_prompt_length + data.max_response_length = 1500 tokens"
BY_ROWS = {
    f"{A}.use_dynamic_bsz": False,
    f"{R}.log_prob_use_dynamic_bsz": False,
    f"{REF}.log_prob_use_dynamic_bsz": False,
}
CRITIC_BY_ROWS = {
    "critic.use_dynamic_bsz": False,
    "critic.ppo_micro_batch_size_per_gpu": 8,
    "critic.forward_micro_batch_size_per_gpu": 16,
}
ROLLOUT_N = (f"{A}.rollout_n", f"{REF}.rollout_n", "critic.rollout_n")
OWN_REFERENCE = {f"{A}.use_kl_loss": True, f"{MODEL}.lora_rank": 0}


def said(changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        check_batching_keys(config(**changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_demo_is_accepted() -> None:
    check_batching_keys(config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {f"{R}.log_prob_use_dynamic_bsz": False},
            f"{R}.log_prob_use_dynamic_bsz=false differs from {A}.use_dynamic_bsz=true, and verl's actor has one "
            "setting for both; give both the same value",
        ),
        (
            {f"{A}.ppo_max_token_len_per_gpu": 1499},
            f"{A}.ppo_max_token_len_per_gpu=1499 cannot hold a row of {LONGEST}; raise it to at least 1500",
        ),
        (
            {f"{R}.log_prob_max_token_len_per_gpu": 1499},
            f"{R}.log_prob_max_token_len_per_gpu=1499 cannot hold a row of {LONGEST}; raise it to at least 1500",
        ),
        ({UPDATE: 1499}, f"{UPDATE}=1499 cannot hold a row of {LONGEST}; raise it to at least 1500"),
        ({FORWARD: 1499}, f"{FORWARD}=1499 cannot hold a row of {LONGEST}; raise it to at least 1500"),
        (
            {**OWN_REFERENCE, f"{REF}.log_prob_max_token_len_per_gpu": 1499},
            f"{REF}.log_prob_max_token_len_per_gpu=1499 cannot hold a row of {LONGEST}; raise it to at least 1500",
        ),
        ({UPDATE: "many"}, f"{UPDATE} must be a whole number of at least 1, got many"),
        ({"critic.use_dynamic_bsz": "no"}, "critic.use_dynamic_bsz must be true or false, got no"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused_before_the_start(changes: dict[str, Any], message: str) -> None:
    assert said(changes) == message


@pytest.mark.parametrize(
    ("key", "value", "plain", "used"),
    [
        (f"{A}.ppo_micro_batch_size", 4, "null", f"{A}.ppo_micro_batch_size_per_gpu"),
        (f"{A}.ppo_infer_max_token_len_per_gpu", 9000, "null", f"{R}.log_prob_max_token_len_per_gpu"),
        (f"{A}.ppo_infer_micro_batch_size_per_gpu", 4, "null", f"{R}.log_prob_micro_batch_size_per_gpu"),
        (f"{A}.ulysses_sequence_parallel_size", 2, "1", f"{A}.fsdp_config.ulysses_sequence_parallel_size"),
        (f"{R}.log_prob_micro_batch_size", 4, "null", f"{R}.log_prob_micro_batch_size_per_gpu"),
        (f"{REF}.log_prob_micro_batch_size", 4, "null", f"{REF}.log_prob_micro_batch_size_per_gpu"),
        ("critic.ppo_micro_batch_size", 4, "null", "critic.ppo_micro_batch_size_per_gpu"),
        ("critic.forward_micro_batch_size", 4, "null", "critic.forward_micro_batch_size_per_gpu"),
        ("critic.ppo_infer_micro_batch_size_per_gpu", 4, "null", "critic.forward_micro_batch_size_per_gpu"),
        ("critic.ulysses_sequence_parallel_size", 2, "1", "critic.fsdp.ulysses_sequence_parallel_size"),
    ],
)
def test_a_name_that_verl_does_not_read_is_refused_with_the_one_that_it_reads(
    key: str, value: int, plain: str, used: str
) -> None:
    assert said({key: value}) == f"{key}={value}: this key does not take effect; set {used} instead and {key}={plain}"


@pytest.mark.parametrize("key", ROLLOUT_N)
def test_sessions_a_question_are_counted_in_one_place(key: str) -> None:
    assert said({key: 2}) == f"{key}=2: this key does not take effect; set {R}.n instead and leave it out"


def test_verls_own_name_for_the_value_passes_budget_may_only_repeat_ours() -> None:
    other = "critic.ppo_infer_max_token_len_per_gpu"
    assert said({other: 4096}) == f"{other}=4096: this key does not take effect; set {FORWARD}=4096 instead"
    check_batching_keys(config(**{other: 4096, FORWARD: 4096}))


def test_the_value_passes_budget_and_rows_are_the_updates_until_given() -> None:
    assert complete(unresolved(**{UPDATE: 4096})).critic.forward_max_token_len_per_gpu == 4096
    by_rows = complete(unresolved(**{"critic.use_dynamic_bsz": False, "critic.ppo_micro_batch_size_per_gpu": 8}))
    assert by_rows.critic.forward_micro_batch_size_per_gpu == 8
    check_batching_keys(by_rows)


@pytest.mark.parametrize("engine", [f"{A}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp"])
@pytest.mark.parametrize("name", ["max_token_len_per_gpu", "infer_micro_batch_size_per_gpu"])
def test_a_field_that_the_trainer_overwrites_is_refused(engine: str, name: str) -> None:
    assert said({f"{engine}.{name}": 9000}) == (
        f"{engine}.{name}=9000: the trainer overwrites it with the keys of the same pass in docs/guides/batching.md; "
        "take it out"
    )


@pytest.mark.parametrize(
    ("dynamic", "rows"),
    [
        (f"{A}.use_dynamic_bsz", f"{A}.ppo_micro_batch_size_per_gpu"),
        (f"{R}.log_prob_use_dynamic_bsz", f"{R}.log_prob_micro_batch_size_per_gpu"),
        ("critic.use_dynamic_bsz", "critic.ppo_micro_batch_size_per_gpu"),
        ("critic.use_dynamic_bsz", "critic.forward_micro_batch_size_per_gpu"),
    ],
)
def test_a_number_of_rows_beside_packing_by_tokens_is_refused(dynamic: str, rows: str) -> None:
    assert said({rows: 4}) == (
        f"{rows}=4: {dynamic}=true packs by tokens and does not read it; set {rows}=null, or {dynamic}=false"
    )


def test_the_critic_may_count_rows_while_the_actor_packs_tokens() -> None:
    check_batching_keys(config(**CRITIC_BY_ROWS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {UPDATE: 4096, FORWARD: 4096},
            f"{UPDATE}=4096: critic.use_dynamic_bsz=false counts rows and does not read it; set {UPDATE}=32768, or "
            "critic.use_dynamic_bsz=true",
        ),
        (
            {FORWARD: 65536},
            f"{FORWARD}=65536: critic.use_dynamic_bsz=false counts rows and does not read it; set {FORWARD}=32768, or "
            "critic.use_dynamic_bsz=true",
        ),
        (
            {"critic.ppo_micro_batch_size_per_gpu": 5},
            "critic.ppo_micro_batch_size_per_gpu=5 does not divide the 32 rows that a rank has of "
            f"critic.ppo_mini_batch_size * {R}.n; choose a divisor",
        ),
        (
            {"critic.forward_micro_batch_size_per_gpu": 5},
            "critic.forward_micro_batch_size_per_gpu=5 does not divide the 32 rows that a rank has of "
            f"data.train_batch_size * {R}.n; choose a divisor",
        ),
        (
            {"critic.ppo_micro_batch_size_per_gpu": None},
            "critic.ppo_micro_batch_size_per_gpu=null: critic.use_dynamic_bsz=false needs it; set "
            "critic.ppo_micro_batch_size_per_gpu=1 or more rows",
        ),
        (
            {"critic.forward_micro_batch_size_per_gpu": 0},
            "critic.forward_micro_batch_size_per_gpu must be a whole number of at least 1, got 0",
        ),
    ],
)
def test_rows_must_be_given_come_out_even_and_leave_no_token_budget(changes: dict[str, Any], message: str) -> None:
    assert said({**CRITIC_BY_ROWS, **changes}) == message


def test_the_actor_counts_rows_in_both_its_passes() -> None:
    update, forward = f"{A}.ppo_micro_batch_size_per_gpu", f"{R}.log_prob_micro_batch_size_per_gpu"
    assert said(BY_ROWS) == f"{update}=null: {A}.use_dynamic_bsz=false needs it; set {update}=1 or more rows"
    assert said({**BY_ROWS, update: 4}) == (
        f"{forward}=null: {R}.log_prob_use_dynamic_bsz=false needs it; set {forward}=1 or more rows"
    )
    check_batching_keys(config(**BY_ROWS, **{update: 4, forward: 16}))


def test_rows_are_spread_over_ranks_before_they_are_split() -> None:
    two = {"trainer.n_gpus_per_node": 2, f"{R}.n": 3, **dict.fromkeys(ROLLOUT_N, 3)}
    assert said({**two, f"{A}.ppo_mini_batch_size": 1}) == (
        f"{A}.ppo_mini_batch_size * {R}.n = 3 rows cannot be spread evenly over 2 ranks; choose a multiple of 2"
    )
    assert said({**two, **CRITIC_BY_ROWS}) == (
        "critic.ppo_micro_batch_size_per_gpu=8 does not divide the 6 rows that a rank has of "
        f"critic.ppo_mini_batch_size * {R}.n; choose a divisor"
    )
    check_batching_keys(config(**two, **{**CRITIC_BY_ROWS, "critic.ppo_micro_batch_size_per_gpu": 3,
                                         "critic.forward_micro_batch_size_per_gpu": 6}))  # fmt: skip
    check_batching_keys(config(**two, **{f"{A}.ppo_mini_batch_size": 1, "trainer.val_only": True}))


def test_a_sequence_split_over_ranks_gives_each_more_room() -> None:
    half = {f"{A}.ppo_max_token_len_per_gpu": 750, f"{R}.log_prob_max_token_len_per_gpu": 750,
            f"{REF}.log_prob_max_token_len_per_gpu": 750, "trainer.n_gpus_per_node": 2}  # fmt: skip
    check_batching_keys(config(**half, **{f"{A}.fsdp_config.ulysses_sequence_parallel_size": 2}))
    key = f"{A}.fsdp_config.ulysses_sequence_parallel_size"
    assert said({key: 2}) == (
        f"{key}=2 does not divide the 1 ranks of trainer.n_gpus_per_node * trainer.nnodes; choose a divisor"
    )


def test_keys_of_the_reference_are_read_only_if_it_is_a_model_of_its_own() -> None:
    key = f"{REF}.log_prob_max_token_len_per_gpu"
    for no_model in ({}, {f"{A}.use_kl_loss": True}, {f"{MODEL}.lora_rank": 0}):
        assert said({**no_model, key: 9000}) == (
            f"{key}=9000: only a reference model of its own reads it, which needs a KL term and no LoRA; set "
            f"{key}=16384, and {R}.log_prob_max_token_len_per_gpu for the actor's pass"
        )
    check_batching_keys(config(**OWN_REFERENCE, **{key: 9000}))
    check_batching_keys(config(**{"algorithm.use_kl_in_reward": True, f"{MODEL}.lora_rank": 0, key: 9000}))


@pytest.mark.parametrize("model", [A, "critic"])
def test_gradients_are_clipped_at_the_one_key_that_verl_reads(model: str) -> None:
    used, other, older = f"{model}.optim.clip_grad", f"{model}.grad_clip", f"{model}.optim.grad_clip"
    assert said({other: 0.5}) == (f"{other}=0.5: gradients are clipped at {used}=1.0; set {used}=0.5 and {other}=1.0")
    assert said({older: 0.5}) == (f"{older}=0.5: gradients are clipped at {used}=1.0; set {used}=0.5 and {older}=null")
    check_batching_keys(config(**{used: 0.5}))
    check_batching_keys(config(**{used: 0.5, other: 0.5}))
    for wrong in (0, -1.0, None, True):
        assert said({used: wrong}).startswith(f"{used} must be a norm above 0, got ")


def test_verl_balances_batches_whatever_is_asked() -> None:
    assert said({"trainer.balance_batch": False}) == (
        "trainer.balance_batch=false: verl's V1 trainer always balances; set trainer.balance_batch=true"
    )


def test_a_run_is_refused_by_these_keys_before_its_files_are_looked_at(tmp_path: Path) -> None:
    given = run_files(tmp_path)
    wrong = {"critic.grad_clip": 0.5, "data.train_files": "no.parquet"}
    assert refusal(config(**{**given, **wrong})).startswith("critic.grad_clip=0.5: ")
