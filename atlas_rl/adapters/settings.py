"""What an adapter is made of: which model it is for, its rank, its scale and the layers that it changes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from peft import LoraConfig, TaskType

from atlas_rl.errors import ConfigError

VALUE_HEAD: Final = "score"
"""The classifier layer of every Hugging Face token-classification model: hidden size to one value."""

ADAPTER_NAME: Final = "default"
"""PEFT's name of the one adapter that a model here carries."""


class AdapterKind(StrEnum):
    """Whose adapter it is; the value is also the name of its folder."""

    ACTOR = "actor"
    CRITIC = "critic"


_TASK_TYPES = {AdapterKind.ACTOR: TaskType.CAUSAL_LM, AdapterKind.CRITIC: TaskType.TOKEN_CLS}


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterSettings:
    """LoRA on explicit layers. A critic's value head is trained whole beside it."""

    kind: AdapterKind
    rank: int
    """Rows of A and columns of B, at least 1."""
    alpha: int
    """The change of a weight is alpha / rank * B @ A."""
    targets: tuple[str, ...]
    """Last parts of the names of linear layers, such as q_proj; sorted, none twice."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: rank or alpha is below 1, or the targets are none, not names, double, or the value head.
        """
        for name, value in (("rank", self.rank), ("alpha", self.alpha)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"lora {name} must be a whole number of at least 1, got {value!r}")
        wrong = [target for target in self.targets if not isinstance(target, str) or not target.strip()]
        if wrong or not self.targets:
            raise ConfigError(
                f"lora targets must be names of linear layers, got {list(self.targets)}; "
                "write for example q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
            )
        if len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"lora targets name a layer twice: {sorted(self.targets)}; name each once")
        if VALUE_HEAD in self.targets:
            raise ConfigError(f"lora targets name the value head {VALUE_HEAD!r}, which trains whole; leave it out")
        object.__setattr__(self, "targets", tuple(sorted(self.targets)))

    @property
    def task_type(self) -> TaskType:
        """PEFT's word for the kind of model."""
        return _TASK_TYPES[self.kind]

    @property
    def scale(self) -> float:
        """Factor of B @ A."""
        return self.alpha / self.rank

    def lora_config(self, base: str | None = None) -> LoraConfig:
        """PEFT's configuration of a model under training.

        Args:
            base: Folder of the base model, for PEFT to name.
        """
        return LoraConfig(
            base_model_name_or_path=base,
            task_type=self.task_type,
            r=self.rank,
            lora_alpha=self.alpha,
            target_modules=list(self.targets),
            modules_to_save=[VALUE_HEAD] if self.kind is AdapterKind.CRITIC else None,
            bias="none",
        )
