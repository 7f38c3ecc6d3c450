"""Value models of families for which transformers has no token classifier of the same configuration.

transformers 5.9 maps ``qwen3_5`` (the one with a vision tower) to a token classifier, and neither its text-only
configuration nor the mixtures of experts.
"""

from transformers import AutoModelForTokenClassification
from transformers.modeling_layers import GenericForTokenClassification
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5PreTrainedModel
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoePreTrainedModel


class Qwen3_5TextForTokenClassification(GenericForTokenClassification, Qwen3_5PreTrainedModel):  # type: ignore[misc]
    """A value model of a text-only Qwen3.5 or 3.6."""

    config: Qwen3_5TextConfig


class Qwen3_5MoeForTokenClassification(GenericForTokenClassification, Qwen3_5MoePreTrainedModel):  # type: ignore[misc]
    """A value model of a Qwen3.5 or 3.6 with experts and a vision tower."""

    config: Qwen3_5MoeConfig


class Qwen3_5MoeTextForTokenClassification(Qwen3_5MoeForTokenClassification):
    """A value model of a text-only Qwen3.5 or 3.6 with experts."""

    config: Qwen3_5MoeTextConfig


def register_value_models() -> None:
    """Let ``AutoModelForTokenClassification`` find them; what transformers brings itself goes before."""
    known = AutoModelForTokenClassification._model_mapping
    for config, model in (
        (Qwen3_5TextConfig, Qwen3_5TextForTokenClassification),
        (Qwen3_5MoeConfig, Qwen3_5MoeForTokenClassification),
        (Qwen3_5MoeTextConfig, Qwen3_5MoeTextForTokenClassification),
    ):
        if config not in known:
            AutoModelForTokenClassification.register(config, model)
