"""Keys of verl 0.9.1 that contradict each other or this project, each refused with the reason that verl's code gives.

verl ignores some of them in silence and stumbles over others long after the start.
"""

from typing import Any

from omegaconf import OmegaConf

from atlas_rl.errors import ConfigError

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"

_PINNED: tuple[tuple[str, Any, str], ...] = (
    ("trainer.use_v1", True, "our trainer extends verl's V1 trainer"),
    ("trainer.v1.trainer_mode", "sync", "verl compares this word and would take its asynchronous paths"),
    ("trainer.resume_mode", "disable", "atlas.run.resume=true resumes a run"),
    ("trainer.resume_from_path", None, "atlas.run.resume=true goes on from the run's own newest step"),
    ("trainer.checkpoint_callback_class", None, "steps are committed by our own writer, which calls nobody"),
    ("trainer.default_hdfs_dir", None, "steps are written to trainer.default_local_dir alone"),
    ("trainer.del_local_ckpt_after_load", False, "a step is removed when a later one is whole, never by a load"),
    ("trainer.max_actor_ckpt_to_keep", None, "use atlas.checkpoint.anchor_every"),
    ("trainer.max_critic_ckpt_to_keep", None, "use atlas.checkpoint.anchor_every"),
    (
        f"{ACTOR}.checkpoint.save_contents",
        ["model", "optimizer", "extra"],
        "a step holds what trains, always",
    ),
    ("critic.checkpoint.save_contents", ["model", "optimizer", "extra"], "a step holds what trains, always"),
    (f"{ACTOR}.checkpoint.async_save", False, "every step is written while training goes on"),
    ("critic.checkpoint.async_save", False, "every step is written while training goes on"),
    (f"{ACTOR}.strategy", "fsdp2", "our engines are FSDP2's"),
    ("critic.strategy", "fsdp2", "our engines are FSDP2's"),
    ("critic.enable", True, "GAE needs a critic"),
    ("algorithm.adv_estimator", "gae", "advantages are GAE with a critic whatever this says"),
    ("algorithm.filter_groups.enable", False, "it filters GRPO groups by fields that our rows do not carry"),
    ("algorithm.use_pf_ppo", False, "our advantages do not resample the batch"),
    ("algorithm.rollout_correction.bypass_mode", False, "sampled log-probs are those under the grammar"),
    ("algorithm.rollout_correction.rollout_is", None, "our advantages do not apply it"),
    ("algorithm.rollout_correction.rollout_rs", None, "our advantages do not apply it"),
    ("actor_rollout_ref.hybrid_engine", True, "the synchronous trainer samples on its own cards"),
    ("trainer.validation_data_dir", None, "validation writes artifacts/RUN/val_dumps"),
    ("trainer.rollout_data_dir", None, "the records of artifacts/RUN/train hold more; atlas-rl run export reads them"),
    ("trainer.log_val_generations", 0, "validation writes artifacts/RUN/val_dumps"),
    ("trainer.v1.sampler.custom_sampler.path", None, "the synchronous trainer samples what it has just drawn"),
    ("trainer.v1.sampler.sync_refill_failed_groups", False, "a fault is a row of its own, no missing group"),
    (f"{ROLLOUT}.agent.default_agent_loop", "atlas_sequential", "rows are written for that loop"),
    (f"{ROLLOUT}.agent.agent_loop_manager_class", None, "our manager carries what our loop needs"),
    (f"{MODEL}.exclude_modules", None, "name the modules in target_modules"),
    (f"{MODEL}.target_parameters", None, "name the modules in target_modules"),
    ("critic.model.exclude_modules", None, "name the modules in target_modules"),
    ("critic.model.target_parameters", None, "name the modules in target_modules"),
    ("custom_reward_function.path", None, "rewards are a function of the record alone: use atlas.reward"),
    ("reward_model.enable", None, "rewards are a function of the record alone"),
    ("reward.reward_model.enable", False, "rewards are a function of the record alone"),
    ("reward.custom_reward_function.path", None, "rewards are a function of the record alone: use atlas.reward"),
    ("data.prompt_key", "prompt", "that is the column of our rows"),
    ("data.truncation", "error", "no prompt is ever truncated"),
    ("data.filter_overlong_prompts", False, "a prompt over the limit is refused, not dropped"),
    ("data.apply_chat_template_kwargs", {}, "our loop renders with atlas.runtime.enable_thinking"),
    (f"{ROLLOUT}.name", "vllm", "structural tags are written for vLLM"),
    (f"{ROLLOUT}.mode", "async", "verl has no other mode"),
    (f"{ROLLOUT}.do_sample", True, "verl does not read it; use temperature=0 for greedy"),
    (f"{ROLLOUT}.logprobs_mode", "processed_logprobs", "recorded log-probs are after mask and temperature"),
    (f"{ROLLOUT}.ignore_eos", False, "a turn ends with its end token"),
    (f"{ROLLOUT}.pipeline_model_parallel_size", 1, "verl runs vLLM without pipeline stages"),
    (f"{ROLLOUT}.multi_turn.max_assistant_turns", None, "use atlas.runtime.max_turns"),
    (f"{ROLLOUT}.multi_turn.max_user_turns", None, "use atlas.runtime.max_turns"),
)
"""Key, the one value that works, and why."""

_MAX_LORA_RANK = 512


def check_verl_keys(config: Any, *, is_constrained: bool) -> None:
    """Refuse a configuration that verl would run otherwise than it reads, or not to the end.

    Args:
        config: The resolved configuration.
        is_constrained: ``atlas.runtime.grammar``.

    Raises:
        ConfigError: key, value, reason and remedy.
    """
    for key, wanted, reason in _PINNED:
        seen = OmegaConf.select(config, key)
        if seen != wanted or (isinstance(wanted, bool) and seen is not wanted):
            raise ConfigError(f"{key}={shown(seen)}: {reason}; set {key}={shown(wanted)}")
    if (
        OmegaConf.select(config, "trainer.val_only")
        and OmegaConf.select(config, "trainer.val_before_train") is not True
    ):
        raise ConfigError(
            "trainer.val_only=true: verl reads it only behind trainer.val_before_train=true and would train; set both"
        )
    if is_constrained:
        _check_backend(config)
    for model in (MODEL, "critic.model"):
        _check_adapter(config, model)
    _check_lengths(config)
    _check_batches(config)
    _check_engine(config)


def shown(value: Any) -> str:
    """A value as the command line takes it."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def count(config: Any, key: str, *, least: int = 1) -> int:
    """The whole number at a key.

    Raises:
        ConfigError: it is something else or below ``least``.
    """
    value = OmegaConf.select(config, key)
    if type(value) is not int or value < least:
        raise ConfigError(f"{key} must be a whole number of at least {least}, got {shown(value)}")
    return value


def _check_backend(config: Any) -> None:
    key = f"{ROLLOUT}.engine_kwargs.vllm.structured_outputs_config"
    node = OmegaConf.select(config, key)
    backend = OmegaConf.select(config, f"{key}.backend") if OmegaConf.is_dict(node) else node
    if backend != "xgrammar":
        raise ConfigError(
            f"{key}.backend={shown(backend)}: the tags of atlas.runtime.grammar=true are XGrammar's; "
            f"set +{key}.backend=xgrammar or atlas.runtime.grammar=false"
        )


def _check_adapter(config: Any, model: str) -> None:
    rank = count(config, f"{model}.lora_rank", least=0)
    if rank > _MAX_LORA_RANK:
        raise ConfigError(f"{model}.lora_rank={rank} is above {_MAX_LORA_RANK}, the most that vLLM loads; lower it")
    targets = OmegaConf.select(config, f"{model}.target_modules")
    if rank and not (OmegaConf.is_list(targets) and targets):
        raise ConfigError(
            f"{model}.target_modules={shown(targets)}: an explicit list is needed, since all-linear puts an adapter on "
            f"the value head; set {model}.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]"
        )


def _check_lengths(config: Any) -> None:
    for ours, theirs in (("data.max_prompt_length", "prompt_length"), ("data.max_response_length", "response_length")):
        length = count(config, ours)
        if count(config, f"{ROLLOUT}.{theirs}") != length:
            raise ConfigError(
                f"{ROLLOUT}.{theirs}={OmegaConf.select(config, f'{ROLLOUT}.{theirs}')}: the limit is {ours}={length} "
                f"and this one is not read; set {ours} only"
            )


def longest_row(config: Any) -> int:
    """Tokens of the longest row that the limits allow."""
    return count(config, "data.max_prompt_length") + count(config, "data.max_response_length")


def _check_batches(config: Any) -> None:
    batch = count(config, "data.train_batch_size")
    for key in (f"{ACTOR}.ppo_mini_batch_size", "critic.ppo_mini_batch_size"):
        if batch % count(config, key):
            raise ConfigError(
                f"{key}={OmegaConf.select(config, key)} does not divide data.train_batch_size={batch}, and verl would "
                "fill the last mini-batch with empty rows; choose a divisor"
            )
    if OmegaConf.select(config, "data.gen_batch_size") is not None and batch % count(config, "data.gen_batch_size"):
        raise ConfigError(
            f"data.gen_batch_size={config.data.gen_batch_size} does not divide data.train_batch_size={batch}; set "
            "data.gen_batch_size=null"
        )
    count(config, f"{ROLLOUT}.n")
    count(config, f"{ROLLOUT}.val_kwargs.n")


def _check_engine(config: Any) -> None:
    chunked = f"{ROLLOUT}.enable_chunked_prefill"
    is_chunked = OmegaConf.select(config, chunked)
    if OmegaConf.select(config, "trainer.device") == "cpu" and is_chunked is not False:
        raise ConfigError(
            f"{chunked}={shown(is_chunked)}: vLLM's CPU engine dies when it cuts the prefill of a request that has a "
            f"seed, as ours all have; set {chunked}=false"
        )
    tokens, rows = f"{ROLLOUT}.max_num_batched_tokens", f"{ROLLOUT}.max_num_seqs"
    if count(config, tokens) < count(config, rows):
        raise ConfigError(
            f"{tokens}={OmegaConf.select(config, tokens)} is below {rows}={OmegaConf.select(config, rows)}, which vLLM "
            f"refuses; raise {tokens}"
        )
    ranks = count(config, "trainer.n_gpus_per_node") * count(config, "trainer.nnodes")
    replica = count(config, f"{ROLLOUT}.tensor_model_parallel_size") * count(config, f"{ROLLOUT}.data_parallel_size")
    if ranks % replica:
        raise ConfigError(
            f"{ROLLOUT}.tensor_model_parallel_size * {ROLLOUT}.data_parallel_size = {replica} does not divide the "
            f"{ranks} ranks of trainer.n_gpus_per_node * trainer.nnodes; choose a divisor"
        )
    _check_temperatures(config)


def _check_temperatures(config: Any) -> None:
    for key, least in ((f"{ROLLOUT}.temperature", "above 0"), (f"{ROLLOUT}.val_kwargs.temperature", "of at least 0")):
        value = OmegaConf.select(config, key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or value < 0 or (value == 0 and least == "above 0"):
            raise ConfigError(f"{key} must be a number {least}, got {shown(value)}")
    greedy = f"{ROLLOUT}.val_kwargs.do_sample"
    if OmegaConf.select(config, greedy) is not True and OmegaConf.select(config, f"{ROLLOUT}.val_kwargs.temperature"):
        raise ConfigError(
            f"{greedy}={shown(OmegaConf.select(config, greedy))}: verl's V1 loop does not read it; for greedy "
            f"validation set {ROLLOUT}.val_kwargs.temperature=0"
        )
