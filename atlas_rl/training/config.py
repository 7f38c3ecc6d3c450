"""The ``atlas`` node of the run's configuration as dataclasses, checked before anything starts."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from atlas_rl.errors import ConfigError
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.potential_sources import PotentialSources

T = TypeVar("T")

LOGPROB_MODES = ("full_vocab", "grammar")
"""Values of ``atlas.policy.logprobs``."""

ADVANTAGE_LEVELS = ("token", "turn")
"""Values of ``atlas.advantage.level``."""

LOGITS_CHANGED_BY: Mapping[str, float | None] = {
    "final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0
}  # fmt: skip
"""Keys of config.json with which models change their logits after the head, and the value that changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Identity and place of a run."""

    id: str
    """Names the run: its folder under ``artifacts_dir``, its log and its records."""
    artifacts_dir: str = "artifacts"
    logs_dir: str = "logs"
    seed: int = 0
    """Seed of everything that this project draws: sampling, adapters, the value head."""
    train_fraction: float = 1.0
    """Share of training rows that is stored, chosen by uid digest; rows that did not submit are always stored."""
    resume: bool = False
    """Continue a run of this id from its latest checkpoint instead of refusing its folder."""
    warm_workers: bool = False
    """Fork worker processes from one that has imported everything; see docs/decisions."""
    delivery_timeout_seconds: float = 1800.0
    """Wall time that one delivery of weights to the rollout may take; verl alone would wait for ever."""
    attempt_id: int = 0
    """Set when the run opens: 0, then one more for each resume."""

    def __post_init__(self) -> None:
        """Refuse an id that is no file name and a fraction outside [0, 1].

        Raises:
            ConfigError: as said.
        """
        if not self.id or not all(c.isalnum() or c in "-._" for c in self.id) or self.id.startswith("."):
            raise ConfigError(f"atlas.run.id must be made of letters, digits and '-._', got {self.id!r}")
        if not 0 <= self.train_fraction <= 1:
            raise ConfigError(f"atlas.run.train_fraction must lie in [0, 1], got {self.train_fraction}")
        if not 0 < self.delivery_timeout_seconds < math.inf:
            raise ConfigError(
                "atlas.run.delivery_timeout_seconds must be above 0 seconds and finite, got "
                f"{self.delivery_timeout_seconds}"
            )

    @property
    def folder(self) -> Path:
        """Where the run's records, metrics and manifest are."""
        return Path(self.artifacts_dir) / self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """What an episode may do; token budgets are verl's ``data.max_prompt_length`` and ``data.max_response_length``."""

    max_turns: int = 9
    """Most generations of an episode."""
    grammar: bool = True
    """Constrain every generation to text and exactly one legal call."""
    max_text_tokens: int | None = None
    """Bound on the free text before each call, in sampled tokens; None: the benchmark's own."""
    reserve_call: bool = False
    """Lessen a generation's text so that the longest legal call fits behind it into what is left of the response."""
    enable_thinking: bool = False
    """Passed to the chat template."""
    grader_timeout_seconds: float = 5.0
    """Wall time that a grader may take for one answer."""

    def __post_init__(self) -> None:
        """Refuse limits that no episode can keep.

        Raises:
            ConfigError: as said.
        """
        if self.max_turns < 1:
            raise ConfigError(f"atlas.runtime.max_turns must be at least 1, got {self.max_turns}")
        if self.max_text_tokens is not None and self.max_text_tokens < 0:
            raise ConfigError(f"atlas.runtime.max_text_tokens must be at least 0 or null, got {self.max_text_tokens}")
        if self.reserve_call and not self.grammar:
            raise ConfigError("atlas.runtime.reserve_call=true works by the grammar; set atlas.runtime.grammar=true")
        if self.grader_timeout_seconds <= 0:
            raise ConfigError(
                f"atlas.runtime.grader_timeout_seconds must be above 0 seconds, got {self.grader_timeout_seconds}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Which distribution the policy's log-probabilities are of, and which of its tokens train it."""

    logprobs: str = "full_vocab"
    """full_vocab: over all tokens, as verl has it; grammar: over the tokens that the grammar allowed at each place, the
    distribution that was sampled. Reference log-probabilities and entropies follow it."""
    train_forced_tokens: bool = True
    """Whether tokens without a legal alternative are in the policy loss under full_vocab; under grammar they never
    are, having nothing to learn."""
    head_chunk_tokens: int | None = 1024
    """Tokens whose logits exist at one time; None: verl's own head, which full_vocab alone can use."""

    def __post_init__(self) -> None:
        """Refuse an unknown mode and a head that cannot give it.

        Raises:
            ConfigError: as said.
        """
        if self.logprobs not in LOGPROB_MODES:
            raise ConfigError(f"atlas.policy.logprobs must be one of {', '.join(LOGPROB_MODES)}, got {self.logprobs!r}")
        if self.head_chunk_tokens is None and self.logprobs == "grammar":
            raise ConfigError(
                "atlas.policy.logprobs=grammar needs the chunked head; set atlas.policy.head_chunk_tokens=1024"
            )
        if self.head_chunk_tokens is not None and self.head_chunk_tokens < 1:
            raise ConfigError(
                f"atlas.policy.head_chunk_tokens must be at least 1 or null, got {self.head_chunk_tokens}"
            )

    @property
    def trains_forced_tokens(self) -> bool:
        """Whether forced tokens are in the policy loss."""
        return self.train_forced_tokens and self.logprobs == "full_vocab"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """Over which steps advantages are estimated; ``algorithm.gamma`` and ``algorithm.lam`` are for one such step."""

    level: str = "token"
    """token: every sampled token is a step; turn: every generation is one, and its tokens share its advantage."""

    def __post_init__(self) -> None:
        """Refuse an unknown level.

        Raises:
            ConfigError: as said.
        """
        if self.level not in ADVANTAGE_LEVELS:
            raise ConfigError(f"atlas.advantage.level must be one of {', '.join(ADVANTAGE_LEVELS)}, got {self.level!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Which saved steps stay; ``trainer.save_freq`` says when a step is saved."""

    anchor_every: int | None = None
    """Steps that are multiples of it stay for good; None: only the latest stays."""

    def __post_init__(self) -> None:
        """Refuse a distance below one step.

        Raises:
            ConfigError: as said.
        """
        if self.anchor_every is not None and self.anchor_every < 1:
            raise ConfigError(f"atlas.checkpoint.anchor_every must be at least 1 or null, got {self.anchor_every}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig:
    """The weight-sync probe: greedy answers to fixed prompts after each delivery of weights."""

    num_prompts: int = 4
    """First questions of the validation set; 0: no probe."""
    num_tokens: int = 8
    """Tokens of each answer."""
    tolerance_nats: float = 0.0
    """How far a log-probability may move under equal weights; above 0 only for kernels that are not deterministic."""

    def __post_init__(self) -> None:
        """Refuse numbers below their least.

        Raises:
            ConfigError: as said.
        """
        for name, least in (("num_prompts", 0), ("num_tokens", 1), ("tolerance_nats", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise ConfigError(f"atlas.probe.{name} must be at least {least} and finite, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheckConfig:
    """The memory check: synthetic full-length rows in place of training; docs/stages.md says what it reports."""

    enabled: bool = False
    """Check memory instead of training."""
    num_steps: int = 2
    """Steps of synthetic rows."""
    num_long_prompts: int = 4
    """Generations from prompts that fill the engine's context but for a few tokens, all at a time; 0: none."""
    rollout: bool = True
    """False: no rollout engine, so no weight update, long contexts or real step; for models beside which none fits."""
    seed: int = 0
    """Of the synthetic rows."""

    def __post_init__(self) -> None:
        """Refuse numbers below their least.

        Raises:
            ConfigError: as said.
        """
        for name, least in (("num_steps", 1), ("num_long_prompts", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"atlas.memory_check.{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AtlasConfig:
    """Everything under ``atlas``."""

    run: RunConfig
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    potentials: PotentialSources = field(default_factory=PotentialSources)
    """Where the parts that ``reward.potentials`` weighs come from."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    memory_check: MemoryCheckConfig = field(default_factory=MemoryCheckConfig)
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables that verl, vLLM and Ray read; set before any of them is imported."""


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a mapping, got {value!r}")
    return value


def _convert(kind: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        inner = [arg for arg in args if arg is not type(None)]
        return _convert(inner[0], value, where)
    if hasattr(kind, "from_mapping"):
        return kind.from_mapping(_mapping(value, where))
    if dataclasses.is_dataclass(kind):
        return build(typing.cast(type[Any], kind), value, where)
    if origin is dict:
        return {str(k): _convert(args[1], v, f"{where}.{k}") for k, v in _mapping(value, where).items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(kind, type) and (not isinstance(value, kind) or (kind is not bool and isinstance(value, bool))):
        raise ConfigError(f"{where} must be of type {kind.__name__}, got {value!r}")
    return value


def build(kind: type[T], values: Any, where: str) -> T:
    """Make the dataclass ``kind`` from a mapping, refusing what it does not know.

    Raises:
        ConfigError: an unknown key, a missing one, or a value of another type; the message has the dotted name.
    """
    values = _mapping(values, where)
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"did you mean {where}.{near[0]}?" if near else f"known: {', '.join(names)}"
            raise ConfigError(f"unknown key {where}.{key}; {hint}")
    for f in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and f.name not in values:
            raise ConfigError(f"{where}.{f.name} is not set; give {where}.{f.name}=VALUE")
    return kind(**{str(k): _convert(hints[k], v, f"{where}.{k}") for k, v in values.items()})


def atlas_config(config: Any) -> AtlasConfig:
    """Read the ``atlas`` node of a composed configuration (a DictConfig or a plain mapping).

    Raises:
        ConfigError: as ``build``.
    """
    node = config["atlas"]
    if not isinstance(node, dict):
        from omegaconf import OmegaConf

        node = OmegaConf.to_container(node, resolve=True)
    return build(AtlasConfig, node, "atlas")
