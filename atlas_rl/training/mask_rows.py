"""The way of grammar masks from the scheduler to the model: buffers that are written only where a mask changed.

Two things are saved. A row that holds the right mask since the last turn is left as it is; in free text that is nearly
all of them. And where scheduler and model are two processes, each distinct mask travels once, with a number a request,
instead of 19 KB a request at 151,936 tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atlas_rl.grammar.walk import EVERYTHING, UNNUMBERED


class MaskRing:
    """Buffers used in turn, so that one can be written while the card still copies another."""

    def __init__(self, num_buffers: int, num_rows: int, width: int, *, is_pinned: bool) -> None:
        """Allocate.

        Args:
            num_buffers: Steps in flight and one more.
            num_rows: Most requests of a step.
            width: int32 words a row.
            is_pinned: Page-locked, so that the copy to the card needs no second buffer; wants a CUDA context here.
        """
        self._tensors = [
            torch.full((num_rows, width), -1, dtype=torch.int32, pin_memory=is_pinned) for _ in range(num_buffers)
        ]
        self._held = [[EVERYTHING] * num_rows for _ in range(num_buffers)]
        self._turn = 0

    def write(self, numbers: Sequence[int], put: Callable[[NDArray[np.int32], list[int]], object]) -> NDArray[np.int32]:
        """[num_requests, width] the next buffer with the masks of a step; valid until the ring comes round.

        Args:
            numbers: [num_requests] of each row's mask; ``UNNUMBERED`` is written anew every time.
            put: Writes those rows of the buffer that must change; called with the buffer and their places.
        """
        self._turn = (self._turn + 1) % len(self._tensors)
        rows: NDArray[np.int32] = self._tensors[self._turn].numpy()
        held = self._held[self._turn]
        changed = [index for index, number in enumerate(numbers) if number == UNNUMBERED or held[index] != number]
        if changed:
            put(rows, changed)
        for index in changed:
            held[index] = numbers[index]
        return rows[: len(numbers)]


class PackedMasks:
    """The masks of a step on their way to another process, where unpickling gives the array that vLLM expects."""

    def __init__(
        self,
        *,
        ring_shape: tuple[int, int, int],
        numbers: Sequence[int],
        places: Sequence[int],
        distinct: NDArray[np.int32],
    ) -> None:
        """Hold what ``unpack`` needs.

        Args:
            ring_shape: Buffers, rows and width of the ring to unpack into.
            numbers: [num_requests] of each request's mask.
            places: [num_requests] row of it in ``distinct``.
            distinct: [num_distinct, width].
        """
        self._parts = (ring_shape, tuple(numbers), tuple(places), distinct)

    def __reduce__(self) -> tuple[Callable[..., NDArray[np.int32]], tuple[Any, ...]]:
        return unpack, self._parts


_rings: dict[tuple[int, int, int], MaskRing] = {}
"""Of this process, by shape; a worker has one."""


def unpack(
    ring_shape: tuple[int, int, int], numbers: Sequence[int], places: Sequence[int], distinct: NDArray[np.int32]
) -> NDArray[np.int32]:
    """[num_requests, width] the masks, in a buffer of this process; valid until its ring comes round.

    The arguments are those of ``PackedMasks``. Numbers mean the same in every message, since one scheduler gives them.
    """
    if ring_shape not in _rings:
        num_buffers, num_rows, width = ring_shape
        has_context = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
        _rings[ring_shape] = MaskRing(num_buffers, num_rows, width, is_pinned=has_context)

    def put(rows: NDArray[np.int32], changed: list[int]) -> None:
        for index in changed:
            rows[index] = distinct[places[index]]

    return _rings[ring_shape].write(numbers, put)
