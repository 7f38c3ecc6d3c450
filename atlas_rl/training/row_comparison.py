"""Random rows through an engine's own forward pass: together, alone, with other neighbours, and going on.

What is told from them is in ``packed_rows``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from verl.utils import tensordict_utils as tu

from atlas_rl.adapters.settings import VALUE_HEAD, AdapterKind
from atlas_rl.errors import TrainingError, blame
from atlas_rl.training.packed_rows import PackedRows
from atlas_rl.training.row_boundaries import linear_attention_layers

ROW_TOKENS = (19, 47, 33)
"""Lengths of the rows: uneven, and together longer than the 64 tokens that chunked linear attention takes at a time."""
MORE_TOKENS = 17
"""How far a row goes on when rounding is measured."""


def compare_rows(engine: Any) -> PackedRows:
    """Run the rows through an engine; every rank of it must call this at the same time, and runs the same rows.

    No parameter, optimizer state or generator changes.

    Args:
        engine: An initialized actor or critic of this project.

    Raises:
        TrainingError: the pass failed, or an output is not finite.
    """
    kind: AdapterKind = engine.kind
    text = engine.model_config.hf_config.get_text_config()
    with (
        blame(TrainingError, f"{kind}: random rows before the start, packed and alone"),
        engine.eval_mode(),
        _values_of_hidden_states(engine.module, text.hidden_size, kind),
    ):
        outputs = _Outputs.of(_Passes(engine), _random_rows(engine.model_config.hf_config))
    everything = [tensor for rows in outputs.all_rows() for tensor in rows]
    if not all(bool(tensor.isfinite().all()) for tensor in everything):
        raise TrainingError(f"{kind}: an output for random rows is not finite; look at the model's weights")
    scale = max(float(tensor.abs().max()) for tensor in everything)
    if scale == 0:
        raise TrainingError(f"{kind}: every output for random rows is 0, so no leak could show; look at its weights")
    return PackedRows(
        model=kind,
        model_type=str(engine.model_config.hf_config.model_type),
        architecture=_architecture(engine.module),
        attention=str(text._attn_implementation),
        dtype=str(engine._autocast_dtype).removeprefix("torch."),
        has_linear_attention=bool(linear_attention_layers(engine.module)),
        has_experts=bool(getattr(text, "num_experts", 0) or getattr(text, "num_local_experts", 0)),
        is_packed=bool(engine.use_remove_padding),
        sequence_parallel_size=int(engine.ulysses_sequence_parallel_size),
        num_tokens=ROW_TOKENS,
        differences=_greatest(outputs.together, outputs.alone),
        influences=_greatest(outputs.together, outputs.other_neighbours),
        rounding=max(_greatest(outputs.alone, outputs.in_longer)),
        jitter=max(_greatest(outputs.together, outputs.repeated)),
        scale=scale,
    )


@dataclass(frozen=True, slots=True)
class _Outputs:
    """[rows] float64 outputs of the same tokens of each row in five surroundings."""

    together: list[Tensor]
    repeated: list[Tensor]
    other_neighbours: list[Tensor]
    alone: list[Tensor]
    in_longer: list[Tensor]

    @classmethod
    def of(cls, passes: "_Passes", rows: Sequence[tuple[Tensor, Tensor]]) -> "_Outputs":
        longer = [row for row, _ in rows]
        plain = [row[:tokens] for row, tokens in zip(longer, ROW_TOKENS, strict=True)]
        others = [other for _, other in rows]
        neighbours = []
        # Every second row keeps its place while those between are replaced, and then the other way round.
        for kept in (0, 1):
            mixed = [plain[place] if place % 2 == kept else others[place] for place in range(len(plain))]
            neighbours.append(passes.run(mixed))
        return cls(
            together=passes.run(plain),
            repeated=passes.run(plain),
            other_neighbours=[neighbours[place % 2][place] for place in range(len(plain))],
            alone=[passes.run([row])[0] for row in plain],
            in_longer=[
                passes.run([row])[0][: len(short) - passes.unused] for row, short in zip(longer, plain, strict=True)
            ],
        )

    def all_rows(self) -> list[list[Tensor]]:
        return [self.together, self.repeated, self.other_neighbours, self.alone, self.in_longer]


class _Passes:
    """Micro-batches through one engine as its worker sends them."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._field = "log_probs" if engine.kind is AdapterKind.ACTOR else "values"
        # The last token's output of an actor is about the token after it, which a row alone does not have.
        self.unused = 1 if engine.kind is AdapterKind.ACTOR else 0

    def run(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """[tokens - unused] float64 outputs of each row; the rows are one micro-batch."""
        fields = {
            "input_ids": list(rows),
            "position_ids": [torch.arange(len(row)) for row in rows],
            "loss_mask": [torch.ones(len(row), dtype=torch.long) for row in rows],
        }
        nested = {name: torch.nested.as_nested_tensor(field, layout=torch.jagged) for name, field in fields.items()}
        batch = TensorDict(nested, batch_size=[len(rows)])
        tu.assign_non_tensor(
            batch,
            temperature=1.0,
            use_remove_padding=self._engine.use_remove_padding,
            use_fused_kernels=bool(self._engine.model_config.use_fused_kernels),
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=len(rows),
        )
        output = self._engine.infer_batch(batch)["model_output"][self._field]
        return [row[: len(row) - self.unused].double().cpu() for row in output.unbind()]


def _random_rows(config: Any) -> list[tuple[Tensor, Tensor]]:
    """For each row its ids, longer by ``MORE_TOKENS`` than the row, and as many ids as the row for its stand-in.

    Ids that a configuration names are left out: some stand for an image that is not there.
    """
    text = config.get_text_config()
    named = {
        value
        for part in (config, text)
        for name, value in vars(part).items()
        if name.endswith("_token_id") and isinstance(value, int)
    }
    plain = torch.tensor([token for token in range(text.vocab_size) if token not in named])
    generator = torch.Generator().manual_seed(0)
    return [
        (
            plain[torch.randint(len(plain), (tokens + MORE_TOKENS,), generator=generator)],
            plain[torch.randint(len(plain), (tokens,), generator=generator)],
        )
        for tokens in ROW_TOKENS
    ]


@contextmanager
def _values_of_hidden_states(module: nn.Module, hidden_size: int, kind: AdapterKind) -> Iterator[None]:
    """Let a critic answer with what its head is given, along a random direction, as long as the block runs.

    A new head is all zero, and so are its values, whatever the hidden states are.
    """
    if kind is AdapterKind.ACTOR:
        yield
        return
    heads = [
        layer
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and VALUE_HEAD in name.split(".")
    ]
    direction = torch.randn(hidden_size, generator=torch.Generator().manual_seed(1)) / hidden_size**0.5

    def answer(layer: nn.Module, given: tuple[Tensor, ...], values: Tensor) -> Tensor:
        # A product and a sum: autocast would round a matrix product to its own dtype.
        along: Tensor = (given[0].float() * direction.to(given[0].device)).sum(dim=-1, keepdim=True)
        return along

    handles = [head.register_forward_hook(answer) for head in heads]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _architecture(module: Any) -> str:
    plain = module.get_base_model() if hasattr(module, "get_base_model") else module
    return next(
        cls.__name__ for cls in type(plain).__mro__ if cls.__module__.split(".")[0] in ("transformers", "atlas_rl")
    )


def _greatest(these: Sequence[Tensor], those: Sequence[Tensor]) -> tuple[float, ...]:
    return tuple(float((one - other).abs().max()) for one, other in zip(these, those, strict=True))
