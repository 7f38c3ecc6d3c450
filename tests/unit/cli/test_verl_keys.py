"""Keys of verl that verl would ignore, or stumble over long after the start, are refused with a reason."""

import pytest
from start_of_a_run import config

from atlas_rl.cli.verl_keys import check_verl_keys
from atlas_rl.errors import ConfigError

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
VLLM = f"{R}.engine_kwargs.vllm"


def test_the_demo_is_accepted() -> None:
    check_verl_keys(config(), is_constrained=True)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "trainer.v1.trainer_mode",
            "colocate_async",
            "trainer.v1.trainer_mode=colocate_async: verl compares this word and would take its asynchronous paths; "
            "set trainer.v1.trainer_mode=sync",
        ),
        (
            "trainer.use_v1",
            False,
            "trainer.use_v1=false: our trainer extends verl's V1 trainer; set trainer.use_v1=true",
        ),
        (
            "trainer.resume_mode",
            "auto",
            "trainer.resume_mode=auto: atlas.run.resume=true resumes a run; set trainer.resume_mode=disable",
        ),
        (
            "trainer.max_actor_ckpt_to_keep",
            3,
            "trainer.max_actor_ckpt_to_keep=3: use atlas.checkpoint.anchor_every; "
            "set trainer.max_actor_ckpt_to_keep=null",
        ),
        (
            "trainer.resume_from_path",
            "x/global_step_3",
            "trainer.resume_from_path=x/global_step_3: atlas.run.resume=true goes on from the run's own newest step; "
            "set trainer.resume_from_path=null",
        ),
        (
            f"{A}.checkpoint.save_contents",
            ["model"],
            f"{A}.checkpoint.save_contents=['model']: a step holds what trains, always; "
            f"set {A}.checkpoint.save_contents=['model', 'optimizer', 'extra']",
        ),
        (f"{A}.strategy", "fsdp", f"{A}.strategy=fsdp: our engines are FSDP2's; set {A}.strategy=fsdp2"),
        ("critic.strategy", "megatron", "critic.strategy=megatron: our engines are FSDP2's; set critic.strategy=fsdp2"),
        ("critic.enable", False, "critic.enable=false: GAE needs a critic; set critic.enable=true"),
        (
            "algorithm.adv_estimator",
            "grpo",
            "algorithm.adv_estimator=grpo: advantages are GAE with a critic whatever this says; "
            "set algorithm.adv_estimator=gae",
        ),
        (
            "algorithm.rollout_correction.rollout_is",
            "token",
            "algorithm.rollout_correction.rollout_is=token: our advantages do not apply it; "
            "set algorithm.rollout_correction.rollout_is=null",
        ),
        (
            "data.truncation",
            "left",
            "data.truncation=left: no prompt is ever truncated; set data.truncation=error",
        ),
        (
            "data.filter_overlong_prompts",
            True,
            "data.filter_overlong_prompts=true: a prompt over the limit is refused, not dropped; "
            "set data.filter_overlong_prompts=false",
        ),
        (f"{R}.name", "sglang", f"{R}.name=sglang: structural tags are written for vLLM; set {R}.name=vllm"),
        (f"{R}.ignore_eos", True, f"{R}.ignore_eos=true: a turn ends with its end token; set {R}.ignore_eos=false"),
        (
            f"{R}.multi_turn.max_assistant_turns",
            3,
            f"{R}.multi_turn.max_assistant_turns=3: use atlas.runtime.max_turns; "
            f"set {R}.multi_turn.max_assistant_turns=null",
        ),
        (
            f"{VLLM}.structured_outputs_config.backend",
            "guidance",
            f"{VLLM}.structured_outputs_config.backend=guidance: the tags of atlas.runtime.grammar=true are "
            f"XGrammar's; set +{VLLM}.structured_outputs_config.backend=xgrammar or atlas.runtime.grammar=false",
        ),
        (
            "critic.model.target_modules",
            "all-linear",
            "critic.model.target_modules=all-linear: an explicit list is needed, since all-linear puts an adapter on "
            "the value head; set critic.model.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]",
        ),
        (
            "actor_rollout_ref.model.lora_rank",
            1024,
            "actor_rollout_ref.model.lora_rank=1024 is above 512, the most that vLLM loads; lower it",
        ),
        (
            f"{R}.response_length",
            400,
            f"{R}.response_length=400: the limit is data.max_response_length=500 and this one is not read; "
            "set data.max_response_length only",
        ),
        (
            f"{A}.ppo_mini_batch_size",
            3,
            f"{A}.ppo_mini_batch_size=3 does not divide data.train_batch_size=4, and verl would fill the last "
            "mini-batch with empty rows; choose a divisor",
        ),
        (
            "data.gen_batch_size",
            3,
            "data.gen_batch_size=3 does not divide data.train_batch_size=4; set data.gen_batch_size=null",
        ),
        (
            "data.train_batch_size",
            "many",
            "data.train_batch_size must be a whole number of at least 1, got many",
        ),
        (
            f"{R}.max_num_batched_tokens",
            255,
            f"{R}.max_num_batched_tokens=255 is below {R}.max_num_seqs=256, which vLLM refuses; "
            f"raise {R}.max_num_batched_tokens",
        ),
        (
            f"{R}.tensor_model_parallel_size",
            2,
            f"{R}.tensor_model_parallel_size * {R}.data_parallel_size = 2 does not divide the 1 ranks of "
            "trainer.n_gpus_per_node * trainer.nnodes; choose a divisor",
        ),
        (
            f"{R}.enable_chunked_prefill",
            True,
            f"{R}.enable_chunked_prefill=true: vLLM's CPU engine dies when it cuts the prefill of a request that has a "
            f"seed, as ours all have; set {R}.enable_chunked_prefill=false",
        ),
        (f"{R}.temperature", 0, f"{R}.temperature must be a number above 0, got 0"),
        (
            f"{R}.val_kwargs.do_sample",
            False,
            f"{R}.val_kwargs.do_sample=false: verl's V1 loop does not read it; for greedy validation "
            f"set {R}.val_kwargs.temperature=0",
        ),
    ],
)
def test_a_key_that_cannot_do_what_it_says_is_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_verl_keys(config(**{key: value}), is_constrained=True)
    assert str(caught.value) == message


def test_another_backend_may_sample_without_a_grammar() -> None:
    check_verl_keys(config(**{f"{VLLM}.structured_outputs_config": None}), is_constrained=False)


def test_full_training_needs_no_list_of_modules() -> None:
    full = {"lora_rank": 0, "target_modules": "all-linear"}
    changes = {
        f"{model}.{key}": value for model in ("actor_rollout_ref.model", "critic.model") for key, value in full.items()
    }
    check_verl_keys(config(**changes), is_constrained=True)
