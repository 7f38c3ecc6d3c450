"""Packed equals separate: what a row gets from a model must not depend on the rows beside it in a micro-batch.

A few random rows go through an engine's own forward pass as one micro-batch, and each alone. Two questions are asked
of each row, because rounding hides small leaks from the first and a wrong position is hidden from the second:

- Does it get the same packed and alone? Other shapes mean other kernels and orders of sums, so the answer is read
  against what rounding does to the same row alone when it goes on for some more tokens.
- Does it get the same when its neighbours are replaced by others of equal lengths? Shapes and kernels stay, masked
  terms are exact zeros, so the answer is zero in every dtype, up to what a mere repetition changes.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from atlas_rl.adapters.settings import AdapterKind
from atlas_rl.errors import TrainingError
from atlas_rl.reporting.manifest import write_atomically

FIGURES_FILE = "packed_rows.json"

# The dtype alone gives no useful bound: rounding grows with depth and width in a way that only a measurement tells.
# Measured, it is one draw of a maximum over some dozen tokens; another draw of it is hardly 8 times as large.
_ROUNDING_MARGIN = 8.0
# A row may round differently where its continuation happened not to: one unit in the last place of the model's dtype
# (1.2e-7 of a float32, 7.8e-3 of a bf16) of the largest output, in each of the two passes.
_FLOOR_UNITS = 2.0
# Same shapes, same kernels, and masked terms that are exact zeros: nothing may change, whatever the dtype. What is
# allowed is a last float32 sum in another order.
_REPEAT_UNITS = 4.0

_CONFIG_KEY = {AdapterKind.ACTOR: "actor_rollout_ref.model", AdapterKind.CRITIC: "critic.model"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """What one rank found about one model.

    An actor's figures are log-probabilities in nats, a critic's its final hidden states along one random direction,
    about as large as an entry of a hidden state.
    """

    model: AdapterKind
    model_type: str
    architecture: str
    attention: str
    dtype: str
    has_linear_attention: bool
    has_experts: bool
    is_packed: bool
    """Whether the engine packs rows (use_remove_padding); padded otherwise."""
    sequence_parallel_size: int
    num_tokens: tuple[int, ...]
    """[rows]"""
    differences: tuple[float, ...]
    """[rows] greatest difference between together and alone."""
    influences: tuple[float, ...]
    """[rows] greatest difference that other neighbours of equal lengths make."""
    rounding: float
    """Greatest difference between a row alone and the same tokens at the start of a longer row alone."""
    jitter: float
    """Greatest difference between two passes over the same micro-batch."""
    scale: float
    """Greatest absolute output."""

    @property
    def tolerance(self) -> float:
        """Of ``differences``."""
        return max(_ROUNDING_MARGIN * self.rounding, _FLOOR_UNITS * torch.finfo(self._dtype).eps * self.scale)

    @property
    def influence_tolerance(self) -> float:
        """Of ``influences``. Experts get as many tokens as are sent to them, so shapes change with the neighbours."""
        if self.has_experts:
            return self.tolerance
        exact = _REPEAT_UNITS * torch.finfo(torch.float32).eps * self.scale
        return max(_ROUNDING_MARGIN * self.jitter, exact)

    @property
    def _dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def excess(self) -> list[float]:
        """[rows] how often the greater figure of the row holds its tolerance; a row leaks above 1."""
        return [
            max(difference / self.tolerance, influence / self.influence_tolerance)
            for difference, influence in zip(self.differences, self.influences, strict=True)
        ]

    def check(self) -> None:
        """Refuse a model that mixes rows.

        Raises:
            TrainingError: a row leaks.
        """
        excess = self.excess
        row = max(range(len(excess)), key=excess.__getitem__)
        if excess[row] <= 1:
            return
        raise TrainingError(
            f"{self.model} {self.model_type} ({self.architecture}): row {row} of {self.num_tokens[row]} tokens "
            f"{'packed' if self.is_packed else 'padded'} with others differs by {self.differences[row]:.1e} from the "
            f"same row alone (tolerance {self.tolerance:.1e}) and by {self.influences[row]:.1e} when only its "
            f"neighbours change (tolerance {self.influence_tolerance:.1e}): rows leak; {self._remedy()}"
        )

    def _remedy(self) -> str:
        key = _CONFIG_KEY[self.model]
        attention = f"{key}.override_config.attn_implementation to another attention than {self.attention}"
        if not self.is_packed:
            return f"set {attention}"
        if self.sequence_parallel_size > 1:
            return (
                f"set ulysses_sequence_parallel_size=1 (it is {self.sequence_parallel_size}); linear attention over "
                "several ranks needs flash-linear-attention"
            )
        padded = f"set {key}.use_remove_padding=false"
        return padded if self.has_linear_attention else f"{padded}, or {attention}"

    def figures(self) -> dict[str, Any]:
        """As JSON holds it."""
        tolerances = {"tolerance": self.tolerance, "influence_tolerance": self.influence_tolerance}
        return asdict(self) | {"model": str(self.model)} | tolerances

    def __str__(self) -> str:
        """The greatest difference with its tolerance."""
        return f"{self.model} {max(self.differences):.1e} (tolerance {self.tolerance:.1e})"


def check_packed_rows(groups: Iterable[Any], folder: Path) -> str:
    """Ask every worker group, write what was found into the run's folder, and refuse a model that mixes rows.

    Args:
        groups: Workers of one model each, with ``check_packed_rows``.
        folder: Of the run.

    Returns:
        One line for the console.

    Raises:
        TrainingError: a row of a model leaks.
    """
    found: list[PackedRows] = [max(group.check_packed_rows(), key=lambda rank: max(rank.excess)) for group in groups]
    text = json.dumps({str(rows.model): rows.figures() for rows in found}, indent=2, allow_nan=False)
    write_atomically(folder / FIGURES_FILE, f"{text}\n".encode())
    for rows in found:
        rows.check()
    return "packed rows: " + ", ".join(map(str, found))
