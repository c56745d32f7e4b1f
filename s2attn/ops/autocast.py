"""What autocast makes of the tensors of a call: the dtype of its context, which the kernels of every device run."""

from __future__ import annotations

import torch

DEVICE_TYPES = ("cpu", "cuda")


def reconciled(device_type: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cast the floating point tensors of one device to the dtype of its autocast context, if there is one.

    Parameters
    ----------
    device_type : str
        ``cpu`` or ``cuda``; tensors elsewhere stay as they are.
    *tensors : torch.Tensor
        float64 tensors stay as they are: as in torch, autocast never narrows them.

    Returns
    -------
    tuple[torch.Tensor, ...]
        The same tensors where autocast is off or nothing is to be cast. Casts are differentiable.
    """
    if device_type not in DEVICE_TYPES or not torch.is_autocast_enabled(device_type):
        return tensors
    return cast(device_type, *tensors)


def cast(device_type: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Like `reconciled`, without asking whether autocast is on."""
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(x.to(dtype) if _eligible(x, device_type) else x for x in tensors)


def _eligible(x: torch.Tensor, device_type: str) -> bool:
    return x.device.type == device_type and x.is_floating_point() and x.dtype != torch.float64
