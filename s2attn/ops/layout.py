"""Channels-first (public) to NHWC (kernels) and back: pure moves, bitwise.

The layout is a contract of the shape's order, never read off strides: torch may report any stride for an extent of 1.
"""

from __future__ import annotations

import torch

from s2attn.errors import InvalidProblem


def to_channels_last(x: torch.Tensor) -> torch.Tensor:
    """Copy [B, C, H, W] to a contiguous [B, H, W, C].

    Raises
    ------
    InvalidProblem
        ``x`` has not four dimensions.
    """
    _check_dimensions(x, "channels-first [B, C, H, W]")
    return x.permute(0, 2, 3, 1).contiguous()


def to_channels_first(x: torch.Tensor) -> torch.Tensor:
    """Copy [B, H, W, C] to a contiguous [B, C, H, W].

    Raises
    ------
    InvalidProblem
        ``x`` has not four dimensions.
    """
    _check_dimensions(x, "NHWC [B, H, W, C]")
    return x.permute(0, 3, 1, 2).contiguous()


def _check_dimensions(x: torch.Tensor, expected: str) -> None:
    if x.dim() != 4:
        raise InvalidProblem("x", tuple(x.shape), f"four dimensions, {expected}")
