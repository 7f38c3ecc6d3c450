"""FSDP2 engines: a LoRA actor and a LoRA critic whose adapters stay fp32 and whose value head trains.

verl 0.9.1 builds every LoRA model as a causal language model, which PEFT refuses for a value model, casts adapters to
the base dtype, and loads value models with flash-attention only. These subclasses are registered for this project's
devices and outrank verl's own.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from transformers import AutoModelForTokenClassification
from verl.utils import model as verl_model
from verl.utils import tensordict_utils as tu
from verl.utils.fsdp_utils import load_fsdp_model_to_gpu, offload_fsdp_model_to_cpu, offload_fsdp_optimizer
from verl.utils.py_functional import convert_to_regular_types
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl

from atlas_rl.adapters.build import add_adapter, load_adapter
from atlas_rl.adapters.settings import VALUE_HEAD, AdapterKind, AdapterSettings
from atlas_rl.adapters.value_models import register_value_models
from atlas_rl.checkpoint.engine_state import (
    capture_engine,
    restore_engine,
    trainable_parameters,
    trainable_specs,
)
from atlas_rl.checkpoint.identity import ModelIdentity
from atlas_rl.checkpoint.loading import load_rank
from atlas_rl.checkpoint.rank_writer import RankWriter, SaveCost
from atlas_rl.errors import ConfigError, TrainingError
from atlas_rl.training.chosen_tokens import POLICY_KEY, ChosenTokens, nested_outputs
from atlas_rl.training.output_head import OutputHead
from atlas_rl.training.row_boundaries import border_arguments, stop_at_row_ends
from atlas_rl.training.updates import APPLIED


def trainable_digests(module: torch.nn.Module) -> dict[str, str]:
    """Sha256 of every trainable tensor's local bytes, by parameter name, for bit-for-bit comparison."""
    digests = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            local = parameter.detach()
            local = local.to_local() if hasattr(local, "to_local") else local
            content = local.contiguous().view(torch.uint8).cpu().numpy().tobytes()
            digests[name] = hashlib.sha256(content).hexdigest()
    return digests


class _AtlasEngine:
    """What actor and critic share: fp32 adapters over a frozen base, digests and saved steps of what trains."""

    kind: AdapterKind
    pass_packed_cu_seqlens: bool
    _writer: RankWriter | None = None
    _num_loss_tokens: int = 0

    # verl's engine, which every subclass derives from too, has these.
    model_config: Any
    module: Any
    optimizer: Any
    lr_scheduler: Any
    ulysses_sequence_parallel_size: int
    _is_offload_param: bool
    _is_offload_optimizer: bool

    def _build_lora_module(self, module: torch.nn.Module) -> torch.nn.Module:
        module.enable_input_require_grads()  # type: ignore[operator]
        config = self.model_config
        targets = convert_to_regular_types(config.target_modules)
        if not isinstance(targets, list | tuple):
            raise ConfigError(
                f"model.target_modules must be an explicit list of module names, got {targets!r}: 'all-linear' would "
                "put an adapter on the value head; write for example "
                "[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]"
            )
        settings = AdapterSettings(
            kind=self.kind, rank=config.lora_rank, alpha=config.lora_alpha, targets=tuple(targets)
        )
        if getattr(config, "lora_adapter_path", None) is not None:
            return load_adapter(module, Path(config.lora_adapter_path), settings)
        return add_adapter(
            module,
            settings,
            seed=int(getattr(config.hf_config, "lora_seed", 0)),
            value_head_std=float(getattr(config.hf_config, "value_head_std", 0.0)),
            value_head_seed=int(getattr(config.hf_config, "value_head_seed", 0)),
        )

    def _build_model_optimizer(self) -> None:
        """Verl's, and packed rows' borders go to every model that has a use for them."""
        super()._build_model_optimizer()  # type: ignore[misc]
        if stop_at_row_ends(self.module):
            self.pass_packed_cu_seqlens = True

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Verl's inputs, with packed rows' borders under transformers' names too.

        Under sequence parallelism a rank holds a part of the tokens, and only verl's own linear attention knows how to
        hand its state on.
        """
        inputs, arguments = super().prepare_model_inputs(micro_batch)  # type: ignore[misc]
        borders = inputs.get("cu_seqlens")
        if borders is not None and self.ulysses_sequence_parallel_size == 1:
            inputs |= border_arguments(borders)
        return inputs, arguments

    def _build_optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        """Verl gives the optimizer every parameter; the frozen base has no business in it, nor in what is saved."""
        optimizer: torch.optim.Optimizer = super()._build_optimizer(module)  # type: ignore[misc]
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
        return optimizer

    def forward_backward_batch(self, data: TensorDict, loss_function: Any, forward_only: bool = False) -> Any:
        """Verl's, remembering how many tokens the loss was divided by."""
        outputs = super().forward_backward_batch(data, loss_function, forward_only)  # type: ignore[misc]
        self._num_loss_tokens = int(tu.get_non_tensor_data(data=data, key="batch_num_tokens", default=0))
        return outputs

    def optimizer_step(self) -> float:
        """Verl's step; none, and NaN, for a mini-batch without a token to learn from.

        Its loss is 0 / 0. Where no gradient flows from it, Adam would still move the weights by what it remembers.
        """
        if self._num_loss_tokens == 0:
            self.optimizer.zero_grad()
            return math.nan
        norm: float = super().optimizer_step()  # type: ignore[misc]
        return norm

    def train_batch(self, data: TensorDict, loss_function: Any) -> Any:
        """Verl's mini-batch; ``APPLIED`` says whether its optimizer's step was made."""
        outputs = super().train_batch(data, loss_function)  # type: ignore[misc]
        norm = outputs["metrics"].get("grad_norm")
        if norm is not None:
            outputs["metrics"][APPLIED] = [float(math.isfinite(norm))]
        return outputs

    def trainable_digests(self) -> dict[str, str]:
        """Sha256 of every trainable tensor of this rank, by name."""
        return trainable_digests(self.module)

    def save_step(self, partial: Path) -> SaveCost:
        """Copy what this rank trains to host memory and begin to write it into ``partial``.

        Raises:
            TrainingError: the step before could not be written.
        """
        state = capture_engine(self.module, self.optimizer, self.lr_scheduler)
        return self._saver().save(partial, state)

    def prepare_to_save(self) -> None:
        """Allocate the host memory of saves, so that the first one keeps training no longer than the others."""
        is_on_card = torch.cuda.is_available() and not self._is_offload_optimizer
        self._saver().reserve(trainable_parameters(self.module), optimizer_is_on_card=is_on_card)

    def _saver(self) -> RankWriter:
        if self._writer is None:
            self._writer = RankWriter(str(self.kind), torch.distributed.get_rank())
        return self._writer

    def load_step(self, step: Path, identity: ModelIdentity) -> None:
        """Put this rank's part of a saved step back.

        Raises:
            TrainingError: a file is damaged.
            ConfigError: the step is of another model, adapter or world size.
        """
        module: torch.nn.Module = self.module
        state = load_rank(
            step, str(self.kind), torch.distributed.get_rank(), expect=identity, trainable=trainable_specs(module)
        )
        # The optimizer's state goes to where its parameters are, which must be where they train.
        if self._is_offload_param:
            load_fsdp_model_to_gpu(module)
        restore_engine(module, self.optimizer, self.lr_scheduler, state)
        if self._is_offload_param:
            offload_fsdp_model_to_cpu(module)
        if self._is_offload_optimizer:
            offload_fsdp_optimizer(self.optimizer)

    def finish_saving(self) -> None:
        """Wait until what was copied is on disk.

        Raises:
            TrainingError: it could not be written.
        """
        if self._writer is not None:
            self._writer.wait()


class AtlasLanguageEngine(_AtlasEngine, transformer_impl.FSDPEngineWithLMHead):  # type: ignore[misc]
    """The actor or the reference: a causal language model with LoRA.

    A batch that carries ``chosen_tokens.POLICY_KEY`` gets its log-probabilities from the chunked head, others from
    verl's own arithmetic on logits.
    """

    kind = AdapterKind.ACTOR
    _chosen: ChosenTokens | None = None

    def _build_module(self) -> torch.nn.Module:
        module: torch.nn.Module = super()._build_module()
        self._head_of = module
        return module

    def _chosen_tokens(self) -> ChosenTokens:
        if self._chosen is None:
            self._chosen = ChosenTokens(
                OutputHead(self._head_of),
                self.model_config.tokenizer,
                compile_chunks=bool(self.engine_config.use_torch_compile),
                sequence_parallel_size=self.ulysses_sequence_parallel_size,
                packed_pad_size=self._get_packed_pad_size,
            )
        return self._chosen

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """Verl's inputs; the head is told which tokens to score."""
        inputs, arguments = super().prepare_model_inputs(micro_batch)
        policy: Mapping[str, Any] | None = tu.get_non_tensor_data(data=micro_batch, key=POLICY_KEY, default=None)
        if policy is not None:
            self._chosen_tokens().prepare(micro_batch, inputs, arguments, policy)
        return inputs, arguments

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Any]:
        """``log_probs`` and, if asked for, ``entropy``: nested over whole rows, 0 where no token was chosen."""
        if tu.get_non_tensor_data(data=micro_batch, key=POLICY_KEY, default=None) is None:
            plain: dict[str, Any] = super().prepare_model_outputs(
                output, output_args, micro_batch, logits_processor_func
            )
            return plain
        return nested_outputs(output.logits, output_args, micro_batch, self._gather_and_unpad_packed)


class AtlasValueEngine(_AtlasEngine, transformer_impl.FSDPEngineWithValueHead):  # type: ignore[misc]
    """The critic: a token-classification model with one label, LoRA, and a fully trained, seeded head.

    ``model.override_config.value_head_std`` (default 0: every value starts at exactly 0) is the standard deviation of
    the head's initial weights, drawn from ``value_head_seed``; its bias starts at 0.
    """

    kind = AdapterKind.CRITIC

    def _build_module(self) -> torch.nn.Module:
        # verl's builder looks the loader up by name at call time; it has no parameter for it.
        loader, verl_model.load_valuehead_model = verl_model.load_valuehead_model, _load_value_model
        try:
            module: torch.nn.Module = super()._build_module()
            return module
        finally:
            verl_model.load_valuehead_model = loader

    def _build_lora_module(self, module: torch.nn.Module) -> torch.nn.Module:
        module = super()._build_lora_module(module)
        heads = [name for name, p in module.named_parameters() if p.requires_grad and f".{VALUE_HEAD}." in name]
        if not heads:
            raise TrainingError("critic: no trainable value head after adding LoRA; a frozen head cannot fit returns")
        return module


def _load_value_model(
    local_path: str, torch_dtype: torch.dtype, model_config: object, trust_remote_code: bool
) -> torch.nn.Module:
    """Load the critic with the attention that its config names, and set its head."""
    register_value_models()
    model: torch.nn.Module = AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
    )
    head = getattr(model, VALUE_HEAD)
    if not isinstance(head, torch.nn.Linear) or head.out_features != 1:
        raise TrainingError(f"critic {local_path}: {VALUE_HEAD!r} must be a linear layer with one output, is {head}")
    std = float(getattr(model_config, "value_head_std", 0.0))
    generator = torch.Generator().manual_seed(int(getattr(model_config, "value_head_seed", 0)))
    with torch.no_grad():
        if not head.weight.is_meta:
            head.weight.copy_(std * torch.randn(head.weight.shape, generator=generator))
            if head.bias is not None:
                head.bias.zero_()
    return model


for _model_type, _engine in (("language_model", AtlasLanguageEngine), ("value_model", AtlasValueEngine)):
    EngineRegistry.register(model_type=_model_type, backend="fsdp2", device="cpu")(_engine)
    EngineRegistry.register(model_type=_model_type, backend="fsdp2", device="cuda", vendor="nvidia")(_engine)
