"""Which tokens teach which model.

Shape suffixes: B = rows of the batch, T = response tokens.
"""

from torch import Tensor

from atlas_rl.errors import TrainingError


def policy_mask(
    response_mask_BT: Tensor, capped_rows_B: Tensor, fault_rows_B: Tensor, forced_BT: Tensor | None = None
) -> Tensor:
    """Tokens of the policy loss and of whitening.

    Args:
        response_mask_BT: 1 exactly on sampled tokens.
        capped_rows_B: bool, True for rows cut by the length cap.
        fault_rows_B: bool, True for rows that are an infrastructure error.
        forced_BT: bool, True for tokens without a legal alternative, which teach nothing; None: they stay.

    Returns:
        [B, T] bool, True on sampled tokens of rows that are neither.

    Raises:
        TrainingError: the shapes do not fit, or a mask is not made of 0 and 1.
    """
    _check_rows("capped_rows", response_mask_BT, capped_rows_B)
    mask_BT = value_mask(response_mask_BT, fault_rows_B) & ~capped_rows_B.bool()[:, None]
    if forced_BT is None:
        return mask_BT
    if forced_BT.shape != mask_BT.shape:
        raise TrainingError(
            f"response_mask of shape {tuple(mask_BT.shape)} needs forced of that shape, got {tuple(forced_BT.shape)}"
        )
    return mask_BT & ~forced_BT.bool()


def value_mask(response_mask_BT: Tensor, fault_rows_B: Tensor) -> Tensor:
    """Tokens of the value loss: rows cut by the cap stay, for their return is real.

    Args:
        response_mask_BT: 1 exactly on sampled tokens.
        fault_rows_B: bool, True for rows that are an infrastructure error.

    Returns:
        [B, T] bool, True on sampled tokens of rows without a fault.

    Raises:
        TrainingError: the shapes do not fit, or a mask is not made of 0 and 1.
    """
    _check_rows("fault_rows", response_mask_BT, fault_rows_B)
    if not ((response_mask_BT == 0) | (response_mask_BT == 1)).all():
        raise TrainingError("response_mask holds values other than 0 and 1; pass the mask of sampled tokens")
    return response_mask_BT.bool() & ~fault_rows_B.bool()[:, None]


def _check_rows(name: str, response_mask_BT: Tensor, rows_B: Tensor) -> None:
    if response_mask_BT.dim() != 2 or rows_B.shape != response_mask_BT.shape[:1]:
        raise TrainingError(
            f"response_mask of shape {tuple(response_mask_BT.shape)} needs {name} of shape [B], "
            f"got {tuple(rows_B.shape)}"
        )
