"""Keys that say how batches are split and gradients clipped: each takes effect, or is refused with the one that does.

docs/guides/batching.md lists who reads which.
"""

from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from atlas_rl.cli.verl_keys import ACTOR, MODEL, REF, ROLLOUT, count, longest_row, shown
from atlas_rl.errors import ConfigError

_ULYSSES = "ulysses_sequence_parallel_size"

_OTHER_NAMES: tuple[tuple[str, Any, str], ...] = (
    (f"{ACTOR}.ppo_micro_batch_size", None, f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
    (f"{ACTOR}.ppo_infer_micro_batch_size_per_gpu", None, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"),
    (f"{ACTOR}.ppo_infer_max_token_len_per_gpu", None, f"{ROLLOUT}.log_prob_max_token_len_per_gpu"),
    (f"{ACTOR}.{_ULYSSES}", 1, f"{ACTOR}.fsdp_config.{_ULYSSES}"),
    (f"{ROLLOUT}.log_prob_micro_batch_size", None, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"),
    (f"{REF}.log_prob_micro_batch_size", None, f"{REF}.log_prob_micro_batch_size_per_gpu"),
    ("critic.ppo_micro_batch_size", None, "critic.ppo_micro_batch_size_per_gpu"),
    ("critic.forward_micro_batch_size", None, "critic.forward_micro_batch_size_per_gpu"),
    ("critic.ppo_infer_micro_batch_size_per_gpu", None, "critic.forward_micro_batch_size_per_gpu"),
    (f"critic.{_ULYSSES}", 1, f"critic.fsdp.{_ULYSSES}"),
)
"""Key that does not take effect, the value that says nothing, and the key that does."""

_ENGINES = (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp")
_SET_BY_THE_TRAINER = (
    "use_dynamic_bsz",
    "max_token_len_per_gpu",
    "micro_batch_size_per_gpu",
    "infer_max_token_len_per_gpu",
    "infer_micro_batch_size_per_gpu",
)
"""Fields of an engine's dataclass that are overwritten with the keys beside it."""

_PLAIN_GRAD_CLIP = 1.0
"""verl's default of the keys that it does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One pass of a model over its rows, and the keys that split them."""

    dynamic: str
    """True: micro-batches are packed by tokens; false: they have a number of rows."""
    tokens: str
    plain_tokens: str | int
    """verl's default: a number, or the key whose value it repeats."""
    rows: str
    plain_rows: str | None = None
    engine: str
    mini_batch: str | None = None
    """Key of the questions whose rows make one update; None: the pass sees the whole batch."""


_ACTOR_UPDATE = _Pass(
    dynamic=f"{ACTOR}.use_dynamic_bsz",
    tokens=f"{ACTOR}.ppo_max_token_len_per_gpu",
    plain_tokens=16384,
    rows=f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    engine=f"{ACTOR}.fsdp_config",
    mini_batch=f"{ACTOR}.ppo_mini_batch_size",
)
_ACTOR_LOG_PROBS = _Pass(
    dynamic=f"{ROLLOUT}.log_prob_use_dynamic_bsz",
    tokens=f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    plain_tokens=f"{ACTOR}.ppo_max_token_len_per_gpu",
    rows=f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    engine=f"{ACTOR}.fsdp_config",
)
_CRITIC_UPDATE = _Pass(
    dynamic="critic.use_dynamic_bsz",
    tokens="critic.ppo_max_token_len_per_gpu",
    plain_tokens=32768,
    rows="critic.ppo_micro_batch_size_per_gpu",
    engine="critic.fsdp",
    mini_batch="critic.ppo_mini_batch_size",
)
_CRITIC_VALUES = _Pass(
    dynamic="critic.use_dynamic_bsz",
    tokens="critic.forward_max_token_len_per_gpu",
    plain_tokens="critic.ppo_max_token_len_per_gpu",
    rows="critic.forward_micro_batch_size_per_gpu",
    plain_rows="critic.ppo_micro_batch_size_per_gpu",
    engine="critic.fsdp",
)
_REFERENCE = _Pass(
    dynamic=f"{REF}.log_prob_use_dynamic_bsz",
    tokens=f"{REF}.log_prob_max_token_len_per_gpu",
    plain_tokens=f"{ACTOR}.ppo_max_token_len_per_gpu",
    rows=f"{REF}.log_prob_micro_batch_size_per_gpu",
    engine=f"{REF}.fsdp_config",
)


def check_batching_keys(config: Any) -> None:
    """Refuse batches that cannot be split, and keys about their splitting that nothing would read.

    Args:
        config: The resolved configuration.

    Raises:
        ConfigError: key, value, reason and remedy.
    """
    _check_other_names(config)
    _check_same_splitting(config)
    for one in (_ACTOR_UPDATE, _ACTOR_LOG_PROBS, _CRITIC_UPDATE, _CRITIC_VALUES):
        _check_pass(config, one)
    if _has_reference_model(config):
        _check_pass(config, _REFERENCE)
    else:
        _check_reference_is_unset(config)
    for model in (ACTOR, "critic"):
        _check_clipping(config, model)


def _check_other_names(config: Any) -> None:
    for key, plain, used in _OTHER_NAMES:
        seen = OmegaConf.select(config, key)
        if seen is not None and seen != plain:
            raise ConfigError(
                f"{key}={shown(seen)}: this key does not take effect; set {used} instead and {key}={shown(plain)}"
            )
    for engine in _ENGINES:
        for name in _SET_BY_THE_TRAINER:
            seen = OmegaConf.select(config, f"{engine}.{name}")
            if seen is not None:
                raise ConfigError(
                    f"{engine}.{name}={shown(seen)}: the trainer overwrites it with the keys of the same pass in "
                    "docs/guides/batching.md; take it out"
                )
    used, other = _CRITIC_VALUES.tokens, "critic.ppo_infer_max_token_len_per_gpu"
    seen = OmegaConf.select(config, other)
    if seen is not None and seen != OmegaConf.select(config, used):
        raise ConfigError(f"{other}={shown(seen)}: this key does not take effect; set {used}={shown(seen)} instead")
    used = f"{ROLLOUT}.n"
    for other in (f"{ACTOR}.rollout_n", f"{REF}.rollout_n", "critic.rollout_n"):
        seen = OmegaConf.select(config, other)
        if seen != OmegaConf.select(config, used):
            raise ConfigError(
                f"{other}={shown(seen)}: this key does not take effect; set {used} instead and leave it out"
            )
    balance = "trainer.balance_batch"
    if OmegaConf.select(config, balance) is not True:
        raise ConfigError(
            f"{balance}={shown(OmegaConf.select(config, balance))}: verl's V1 trainer always balances; "
            f"set {balance}=true"
        )


def _check_same_splitting(config: Any) -> None:
    ours, other = _ACTOR_UPDATE.dynamic, _ACTOR_LOG_PROBS.dynamic
    is_dynamic, is_other = _flag(config, ours), _flag(config, other)
    if is_dynamic is not is_other:
        raise ConfigError(
            f"{other}={shown(is_other)} differs from {ours}={shown(is_dynamic)}, and verl's actor has one setting for "
            "both; give both the same value"
        )


def _flag(config: Any, key: str) -> bool:
    value = OmegaConf.select(config, key)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} must be true or false, got {shown(value)}")
    return value


def _check_pass(config: Any, one: _Pass) -> None:
    is_dynamic = _flag(config, one.dynamic)
    ranks = _check_ranks(config, one)
    if is_dynamic:
        rows = OmegaConf.select(config, one.rows)
        if rows is not None:
            raise ConfigError(
                f"{one.rows}={shown(rows)}: {one.dynamic}=true packs by tokens and does not read it; set "
                f"{one.rows}=null, or {one.dynamic}=false"
            )
        _check_room(config, one)
        return
    if OmegaConf.select(config, one.rows) is None:
        raise ConfigError(f"{one.rows}=null: {one.dynamic}=false needs it; set {one.rows}=1 or more rows")
    plain = one.plain_tokens if isinstance(one.plain_tokens, int) else OmegaConf.select(config, one.plain_tokens)
    tokens = OmegaConf.select(config, one.tokens)
    if tokens != plain:
        raise ConfigError(
            f"{one.tokens}={shown(tokens)}: {one.dynamic}=false counts rows and does not read it; set "
            f"{one.tokens}={plain}, or {one.dynamic}=true"
        )
    questions = one.mini_batch or "data.train_batch_size"
    rows, all_rows = count(config, one.rows), count(config, questions) * count(config, f"{ROLLOUT}.n") // ranks
    if not _is_validation_only(config) and all_rows % rows:
        raise ConfigError(
            f"{one.rows}={rows} does not divide the {all_rows} rows that a rank has of {questions} * {ROLLOUT}.n; "
            "choose a divisor"
        )


def _check_ranks(config: Any, one: _Pass) -> int:
    """Number of ranks that rows are spread over; they must come out even."""
    all_ranks = count(config, "trainer.n_gpus_per_node") * count(config, "trainer.nnodes")
    split = count(config, f"{one.engine}.{_ULYSSES}")
    if all_ranks % split:
        raise ConfigError(
            f"{one.engine}.{_ULYSSES}={split} does not divide the {all_ranks} ranks of trainer.n_gpus_per_node * "
            "trainer.nnodes; choose a divisor"
        )
    ranks = all_ranks // split
    if one.mini_batch is not None and not _is_validation_only(config):
        rows = count(config, one.mini_batch) * count(config, f"{ROLLOUT}.n")
        if rows % ranks:
            raise ConfigError(
                f"{one.mini_batch} * {ROLLOUT}.n = {rows} rows cannot be spread evenly over {ranks} ranks; choose a "
                f"multiple of {ranks}"
            )
    return ranks


def _is_validation_only(config: Any) -> bool:
    return OmegaConf.select(config, "trainer.val_only") is True


def _check_room(config: Any, one: _Pass) -> None:
    """A micro-batch that is packed by tokens must hold the longest row: verl asserts it when such a row comes."""
    ranks = count(config, f"{one.engine}.{_ULYSSES}")
    if count(config, one.tokens) * ranks < longest_row(config):
        raise ConfigError(
            f"{one.tokens}={OmegaConf.select(config, one.tokens)} cannot hold a row of data.max_prompt_length + "
            f"data.max_response_length = {longest_row(config)} tokens; raise it to at least "
            f"{-(-longest_row(config) // ranks)}"
        )


def _has_reference_model(config: Any) -> bool:
    """Whether the reference is a model of its own, not the actor without its adapter."""
    has_kl = OmegaConf.select(config, "algorithm.use_kl_in_reward") or OmegaConf.select(config, f"{ACTOR}.use_kl_loss")
    return bool(has_kl) and not OmegaConf.select(config, f"{MODEL}.lora_rank")


def _check_reference_is_unset(config: Any) -> None:
    for key, plain, used in (
        (_REFERENCE.dynamic, OmegaConf.select(config, _ACTOR_UPDATE.dynamic), _ACTOR_LOG_PROBS.dynamic),
        (_REFERENCE.tokens, OmegaConf.select(config, _ACTOR_UPDATE.tokens), _ACTOR_LOG_PROBS.tokens),
        (_REFERENCE.rows, None, _ACTOR_LOG_PROBS.rows),
    ):
        seen = OmegaConf.select(config, key)
        if seen != plain:
            raise ConfigError(
                f"{key}={shown(seen)}: only a reference model of its own reads it, which needs a KL term and no LoRA; "
                f"set {key}={shown(plain)}, and {used} for the actor's pass"
            )


def _check_clipping(config: Any, model: str) -> None:
    used, other, older = f"{model}.optim.clip_grad", f"{model}.grad_clip", f"{model}.optim.grad_clip"
    norm = OmegaConf.select(config, used)
    if isinstance(norm, bool) or not isinstance(norm, int | float) or norm <= 0:
        raise ConfigError(f"{used} must be a norm above 0, got {shown(norm)}")
    for key, plain in ((other, _PLAIN_GRAD_CLIP), (older, None)):
        seen = OmegaConf.select(config, key)
        if seen not in (plain, norm):
            raise ConfigError(
                f"{key}={shown(seen)}: gradients are clipped at {used}={shown(norm)}; set {used}={shown(seen)} and "
                f"{key}={shown(plain)}"
            )
