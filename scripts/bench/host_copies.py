"""A model's place in host memory while it is off the card, at its exact size.

verl moves a model with ``Tensor.to("cpu", non_blocking=True)``, for which torch takes page-locked memory in powers of
two: a matrix of 170 MiB gets 256, and 27B parameters in bf16 get 76 GiB in place of 50. It also copies the frozen base
back to the host each time, though nothing has changed it. Here the frozen parameters are copied to the host once and
only ever read from there; what trains is small and stays on the card.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

logger = logging.getLogger(__name__)

_LEAST_LOCKED_BYTES = 1 << 20
"""Smaller ones may share a page with other memory."""


class HostCopies:
    """The frozen parameters of one FSDP2 model on this rank, on the card or off it."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        """Copy nothing yet.

        Args:
            module: Wrapped by ``fully_shard``, its parameters on ``device``.
            device: Where it works.
        """
        self._module = module
        self._device = device
        self._frozen: dict[int, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Host memory of the copies, 0 before the first ``offload``."""
        return sum(copy.numel() * copy.element_size() for copy in self._frozen.values())

    @torch.no_grad()
    def offload(self) -> None:
        """Let the frozen parameters leave the card."""
        self._module._apply(self._off)  # type: ignore[no-untyped-call]
        if self._device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    @torch.no_grad()
    def load(self) -> None:
        """Bring them back to the card."""
        self._module._apply(self._on)  # type: ignore[no-untyped-call]

    def _off(self, tensor: Tensor) -> Tensor:
        if not _is_frozen(tensor):
            return tensor
        if id(tensor) not in self._frozen:
            self._frozen[id(tensor)] = _page_locked_copy(_local(tensor), self._device)
        return _like(tensor, self._frozen[id(tensor)])

    def _on(self, tensor: Tensor) -> Tensor:
        copy = self._frozen.get(id(tensor)) if _is_frozen(tensor) else None
        if copy is None:
            return tensor
        return _like(tensor, copy.to(self._device, non_blocking=True, copy=True))


def exact_offload(engine: Any, device: torch.device) -> HostCopies:
    """Let an engine of verl, built without ``param_offload``, keep its frozen parameters in ``HostCopies`` from now on.

    Args:
        engine: On its card; it leaves it.
        device: The card.
    """
    copies = HostCopies(engine.module, device)
    plain: Callable[..., None] = engine.to

    def to(device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        plain(device=device, model=False, optimizer=optimizer, grad=False)
        if model:
            copies.offload() if device == "cpu" else copies.load()

    engine.to = to
    engine._is_offload_param = True
    copies.offload()
    return copies


def _is_frozen(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor.data


def _like(tensor: Tensor, local: Tensor) -> Tensor:
    """``local`` as the content of a parameter's replacement."""
    if not isinstance(tensor, DTensor):
        return local
    # DTensor.from_local would move it to the mesh's device.
    return DTensor(local, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _page_locked_copy(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on the host; locked in place, since torch's own page-locked memory comes in powers of two."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    num_bytes = copy.numel() * copy.element_size()
    if device.type == "cuda" and num_bytes >= _LEAST_LOCKED_BYTES:
        status = torch.cuda.cudart().cudaHostRegister(copy.data_ptr(), num_bytes, 0)  # type: ignore[no-untyped-call]
        if int(status) != 0:
            logger.warning("%d bytes of host memory could not be page-locked (%s): loads are slower", num_bytes, status)
    copy.copy_(tensor)
    return copy
