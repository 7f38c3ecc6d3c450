"""From a micro-batch to the tokens that the actor's head scores, and back to verl's nested outputs.

Shape suffixes: B = rows, S = tokens of the longest row, F = tokens of all rows one after the other (this rank's part
under sequence parallelism), N = chosen tokens.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn.functional import pad
from verl.utils import tensordict_utils as tu
from verl.utils.ulysses import ulysses_pad_and_slice_inputs

from atlas_rl.errors import TrainingError
from atlas_rl.objective.token_logprobs import LegalSets
from atlas_rl.training.legal_sets import UNSAMPLED, ReplayedSets
from atlas_rl.training.output_head import HeadCall, OutputHead

POLICY_KEY = "atlas_policy"
"""Batch-wide key: a mapping with ``logprobs`` (full_vocab or grammar), ``chunk_tokens`` and ``max_text_tokens``."""

_UNSUPPORTED = ("use_fused_kernels", "calculate_sum_pi_squared", "distillation_use_topk", "distillation_only")


class ChosenTokens:
    """Chooses the tokens of each micro-batch of one engine."""

    def __init__(
        self,
        head: OutputHead,
        tokenizer: Any,
        *,
        compile_chunks: bool,
        sequence_parallel_size: int,
        packed_pad_size: Callable[[int], int],
    ) -> None:
        """Hold what stays the same.

        Args:
            head: The engine's head.
            tokenizer: The run's.
            compile_chunks: Fuse the head's arithmetic; only taken on a GPU.
            sequence_parallel_size: Ranks that share one packed row.
            packed_pad_size: Tokens that verl appends to a packed row of a length.
        """
        self._head = head
        self._tokenizer = tokenizer
        self._compile_chunks = compile_chunks
        self._sequence_parallel_size = sequence_parallel_size
        self._packed_pad_size = packed_pad_size
        self._sets: ReplayedSets | None = None

    def prepare(
        self,
        micro_batch: TensorDict,
        inputs: Mapping[str, Any],
        arguments: Mapping[str, Any],
        policy: Mapping[str, Any],
    ) -> None:
        """Tell the head what the next forward pass must give.

        Args:
            micro_batch: Nested rows without padding.
            inputs: What verl hands the model.
            arguments: What verl keeps for the outputs: rolled ids and temperatures.
            policy: The value of ``POLICY_KEY``.

        Raises:
            TrainingError: the batch asks for what the head does not give, or a token is not legal.
        """
        asked = [key for key in _UNSUPPORTED if tu.get_non_tensor_data(data=micro_batch, key=key, default=False)]
        if asked:
            raise TrainingError(
                f"the actor's chunked head does not give {asked[0]}; turn it off, or set "
                "atlas.policy.logprobs=full_vocab and atlas.policy.head_chunk_tokens=null"
            )
        device = micro_batch["input_ids"].device
        by_grammar = policy["logprobs"] == "grammar"
        places_F = self._places(micro_batch, policy)
        if "temperature_rmpad" in arguments:
            places_F = self._this_rank(places_F)
            chosen_N = (places_F >= 0).nonzero()[:, 0]
            where_N, temperature_N = chosen_N, arguments["temperature_rmpad"][chosen_N]
        else:
            chosen_N = (places_F >= 0).nonzero()[:, 0]
            row_F, column_F = _rows_and_columns(micro_batch["input_ids"].offsets())
            where_N = row_F[chosen_N] * inputs["input_ids"].shape[1] + column_F[chosen_N]
            temperature_N = arguments["temperature"][row_F[chosen_N]]
        legal = None
        if by_grammar:
            legal = LegalSets(self._replayed(policy).words_DW(device), places_F[chosen_N].long())
        self._head.prepare(
            HeadCall(
                places_N=where_N,
                targets_N=arguments["input_ids_rmpad_rolled"][chosen_N],
                temperature_N=temperature_N.float(),
                legal=legal,
                chunk_tokens=int(policy["chunk_tokens"]),
                entropy_gradient=bool(tu.get_non_tensor_data(micro_batch, key="calculate_entropy", default=False)),
                compile_chunks=self._compile_chunks and device.type == "cuda",
            )
        )

    def _replayed(self, policy: Mapping[str, Any]) -> ReplayedSets:
        if self._sets is None:
            self._sets = ReplayedSets(self._tokenizer, self._head.vocab_size, policy.get("max_text_tokens"))
        return self._sets

    def _places(self, micro_batch: TensorDict, policy: Mapping[str, Any]) -> Tensor:
        """[F] int32 at the position that predicts a token: its set's place, below 0 if it is not to be scored.

        A forced token is not scored: its log-probability and entropy are 0 by definition, and so are its gradients.
        """
        offsets = micro_batch["input_ids"].offsets()
        places_F = torch.full((int(offsets[-1]),), UNSAMPLED, dtype=torch.int32)
        masks = micro_batch["response_mask"].unbind()
        if policy["logprobs"] == "grammar":
            rows = [torch.from_numpy(places) for places in self._replayed(policy).places(micro_batch)]
        else:
            rows = [torch.where(mask.cpu().bool(), 0, UNSAMPLED).to(torch.int32) for mask in masks]
        for end, places in zip(offsets[1:].tolist(), rows, strict=True):
            places_F[end - len(places) - 1 : end - 1] = places
        return places_F.to(offsets.device)

    def _this_rank(self, places_F: Tensor) -> Tensor:
        """The part of a packed row that this rank computes, padded as verl pads the ids."""
        places_F = pad(places_F, (0, self._packed_pad_size(places_F.shape[0])), value=UNSAMPLED)
        if self._sequence_parallel_size > 1:
            sliced, _, _ = ulysses_pad_and_slice_inputs(
                places_F[None], None, sp_size=self._sequence_parallel_size, pad_value=UNSAMPLED
            )
            places_F = sliced[0]
        return places_F


def _rows_and_columns(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """[F] row, and place in the row, of each token of nested rows."""
    lengths = offsets.diff()
    row_F = torch.repeat_interleave(torch.arange(len(lengths), device=offsets.device), lengths)
    return row_F, torch.arange(int(offsets[-1]), device=offsets.device) - offsets[row_F]


def nested_outputs(
    scored: Tensor,
    arguments: Mapping[str, Any],
    micro_batch: TensorDict,
    gather_and_unpad: Callable[[Tensor, int], Tensor],
) -> dict[str, Tensor]:
    """What the head gave, as verl's losses read it.

    Args:
        scored: [1, F, 2] packed or [B, S, 2] padded: log-probability and entropy.
        arguments: As for ``prepare``.
        micro_batch: Nested rows.
        gather_and_unpad: Joins the ranks' parts of a packed row and drops the given number of tokens at its end.
    """
    offsets = micro_batch["input_ids"].offsets()
    if "temperature_rmpad" in arguments:
        both_F2 = gather_and_unpad(scored[0], arguments["pad_size"])
    else:
        row_F, column_F = _rows_and_columns(offsets)
        both_F2 = scored[row_F, column_F]
    outputs = {"log_probs": torch.nested.nested_tensor_from_jagged(both_F2[:, 0].contiguous(), offsets)}
    if tu.get_non_tensor_data(data=micro_batch, key="calculate_entropy", default=False):
        outputs["entropy"] = torch.nested.nested_tensor_from_jagged(both_F2[:, 1].contiguous(), offsets)
    return outputs
