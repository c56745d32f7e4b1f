"""Attention layers on the sphere. Public tensors are channels-first; inside, everything is NHWC."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Self

import torch
from torch import nn
from torch.nn import functional

from s2attn.errors import InvalidProblem
from s2attn.functional import neighborhood_attention
from s2attn.geometry.grids import check_grid, checked_shape
from s2attn.geometry.neighborhood import neighborhood
from s2attn.geometry.quadrature import latitude_weights
from s2attn.ops.layout import to_channels_first, to_channels_last
from s2attn.ops.weighted_attention import log_weight_channels, log_weight_mask, weighted_attention
from s2attn.problem import AttentionProblem, check_channels, check_flag, check_positive, check_signal

# query, and key and value unless they are the query
Signals = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]


class SphericalAttention(nn.Module):
    """What the layers share: projections, per-head norm, scale, and the checks of their signals."""

    scale: float | torch.Tensor

    def __init__(
        self, in_channels: int, num_heads: int, k_channels: int | None = None, out_channels: int | None = None
    ) -> None:
        super().__init__()
        check_positive("in_channels", in_channels)
        check_positive("num_heads", num_heads)
        self.in_channels = in_channels
        self.num_heads = num_heads
        self.k_channels = in_channels if k_channels is None else k_channels
        self.out_channels = in_channels if out_channels is None else out_channels
        for argument, channels in (("k_channels", self.k_channels), ("out_channels", self.out_channels)):
            check_channels(argument, channels, num_heads)

    def _projected(
        self, signals: Signals, out_shape: tuple[int, int], in_shape: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Check the public signals and return q (normalized, scaled), k (normalized) and v, NHWC."""
        query, key, value = signals
        if (key is None) != (value is None):
            raise InvalidProblem("value" if value is None else "key", None, "key and value together, or neither")
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x is not None or name == "query":
                check_signal(name, x)
        self._check_input("query", query, out_shape)
        query_points = to_channels_last(query)
        if key is None or value is None:
            self._check_input("query", query, in_shape)
            key_points = value_points = query_points
        else:
            self._check_input("key", key, in_shape)
            self._check_input("value", value, in_shape)
            key_points = to_channels_last(key)
            for name, x in (("key", key), ("value", value)):
                if x.shape[0] != query.shape[0]:
                    raise InvalidProblem(name, tuple(x.shape), f"the batch of query, {query.shape[0]}")
            value_points = key_points if value is key else to_channels_last(value)
        q = self._normalized(_project(query_points, self.q_weights, self.q_bias), self.q_norm_weights)
        k = self._normalized(_project(key_points, self.k_weights, self.k_bias), self.k_norm_weights)
        v = _project(value_points, self.v_weights, self.v_bias)
        # a scale of shape [1] in a wider dtype would widen q, one of shape [] would not
        return (q * self.scale).to(q.dtype), k, v

    def _set_scale(self, scale: float | torch.Tensor | None) -> None:
        if scale is None:
            self.scale = 1.0 / math.sqrt(self.k_channels // self.num_heads)
        elif isinstance(scale, nn.Parameter) and _is_factor(scale):
            self.scale = scale
        elif isinstance(scale, torch.Tensor) and _is_factor(scale):
            self.register_buffer("scale", scale.detach(), persistent=False)
        elif isinstance(scale, int | float) and not isinstance(scale, bool) and math.isfinite(scale):
            self.scale = float(scale)
        else:
            raise InvalidProblem("scale", scale, "a finite number or a real tensor of one finite element")

    def _make_weights(self) -> None:
        """Weights uniform within sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, eq. 16)."""
        n_in, n_k, n_out = self.in_channels, self.k_channels, self.out_channels
        self.q_weights = _glorot(n_k, n_in)
        self.k_weights = _glorot(n_k, n_in)
        self.v_weights = _glorot(n_out, n_in)
        self.proj_weights = _glorot(n_out, n_out)

    def _make_biases_and_gains(self, *, bias: bool, use_qknorm: bool) -> None:
        check_flag("bias", bias)
        check_flag("use_qknorm", use_qknorm)
        n_k, n_out = self.k_channels, self.out_channels
        self.q_bias = _zeros(n_k) if bias else None
        self.k_bias = _zeros(n_k) if bias else None
        self.v_bias = _zeros(n_out) if bias else None
        self.proj_bias = _zeros(n_out) if bias else None
        self.q_norm_weights = _zeros(n_k // self.num_heads) if use_qknorm else None
        self.k_norm_weights = _zeros(n_k // self.num_heads) if use_qknorm else None

    def _normalized(self, x: torch.Tensor, gains: nn.Parameter | None) -> torch.Tensor:
        if gains is None:
            return x
        per_head = x.reshape(*x.shape[:-1], self.num_heads, -1)
        # under autocast x is narrower than the gains: the norm takes their dtype, q and k come back in the one of v
        normalized = functional.rms_norm(per_head.to(gains.dtype), tuple(gains.shape), weight=1 + gains)
        return normalized.flatten(-2).to(x.dtype)

    def _check_input(self, name: str, x: torch.Tensor, shape: tuple[int, int]) -> None:
        if x.dim() != 4 or tuple(x.shape[1:]) != (self.in_channels, *shape):
            raise InvalidProblem(name, tuple(x.shape), f"[B, {self.in_channels}, {shape[0]}, {shape[1]}]")
        if x.device != self.q_weights.device:
            raise InvalidProblem(name, str(x.device), f"the device of the layer, {self.q_weights.device}")
        if x.dtype != self.q_weights.dtype and not torch.is_autocast_enabled(x.device.type):
            raise InvalidProblem(name, x.dtype, f"the dtype of the layer, {self.q_weights.dtype}")


class NeighborhoodAttentionS2(SphericalAttention):
    """Multi-head attention in which every output point sees the input points within a geodesic disk.

    Arguments and parameters carry the names and shapes of torch-harmonics' layer of the same name, so that one can
    stand in for the other and state dicts move both ways.

    Parameters
    ----------
    in_channels : int
        Channels of query, key and value.
    in_shape, out_shape : tuple[int, int]
        (nlat, nlon) of key and value, and of query and output.
    grid_in, grid_out : str
        Latitude grids: ``equiangular``, ``legendre-gauss`` or ``lobatto``.
    num_heads : int
        Number of heads; divides ``k_channels`` and ``out_channels``.
    scale : float or torch.Tensor, optional
        Factor on the projected query; a tensor of one element may be learnable. Default: 1 / sqrt(k_channels /
        num_heads).
    use_qknorm : bool
        Normalize query and key per head by their root mean square, with learnable gains 1 + q_norm_weights and
        1 + k_norm_weights.
    bias : bool
        Add a bias in all four projections.
    theta_cutoff : float, optional
        Radius of the disks in radians. Default: largest colatitude gap of the coarser grid.
    k_channels : int, optional
        Channels of the inner products, over all heads. Default: ``in_channels``.
    out_channels : int, optional
        Channels of the output. Default: ``in_channels``.
    optimized_kernel : bool
        False is short for ``backend="reference"``.
    backend : str
        See `s2attn.neighborhood_attention`.

    Raises
    ------
    InvalidProblem
        Naming the argument, what was given and what is expected.

    Warns
    -----
    UserWarning
        Once, at construction, when output points have no input point in reach: their attention is 0.
    """

    def __init__(
        self,
        in_channels: int,
        in_shape: tuple[int, int],
        out_shape: tuple[int, int],
        grid_in: str = "equiangular",
        grid_out: str = "equiangular",
        num_heads: int = 1,
        scale: float | torch.Tensor | None = None,
        use_qknorm: bool = False,
        bias: bool = True,
        theta_cutoff: float | None = None,
        k_channels: int | None = None,
        out_channels: int | None = None,
        optimized_kernel: bool = True,
        backend: str = "auto",
    ) -> None:
        super().__init__(in_channels, num_heads, k_channels, out_channels)
        self.backend = _backend(optimized_kernel, backend)
        self.problem = AttentionProblem(
            in_shape,
            out_shape,
            grid_in,
            grid_out,
            theta_cutoff,
            heads=num_heads,
            channels_in=self.k_channels,
            channels_out=self.out_channels,
        )
        self.neighborhood = neighborhood(self.problem)
        # in this order: a learnable scale keeps its place among the public layer's parameters, which optimizers number
        self._make_weights()
        self._set_scale(scale)
        self._make_biases_and_gains(bias=bias, use_qknorm=use_qknorm)
        empty = self.neighborhood.empty_queries
        if empty:
            points = math.prod(self.problem.out_shape)
            message = f"{empty} of {points} output points have no input point within theta_cutoff={self.problem.cutoff}"
            warnings.warn(f"{message}: their attention is 0", stacklevel=2)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor | None = None, value: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend.

        Parameters
        ----------
        query : torch.Tensor
            [B, in_channels, nlat_out, nlon_out].
        key, value : torch.Tensor, optional
            [B, in_channels, nlat_in, nlon_in]; both or neither. Default: ``query`` (self-attention).

        Returns
        -------
        torch.Tensor
            [B, out_channels, nlat_out, nlon_out], contiguous.

        Raises
        ------
        InvalidProblem
            Extents, dtypes or devices do not fit the layer or each other.
        """
        q, k, v = self._projected((query, key, value), self.problem.out_shape, self.problem.in_shape)
        y = neighborhood_attention(q, k, v, self.neighborhood, heads=self.num_heads, backend=self.backend)
        return to_channels_first(_project(y, self.proj_weights, self.proj_bias))

    def extra_repr(self) -> str:
        """Arguments shown by ``print(layer)``."""
        problem = self.problem
        return (
            f"in_channels={self.in_channels}, k_channels={self.k_channels}, out_channels={self.out_channels}, "
            f"num_heads={self.num_heads}, in_shape={problem.in_shape}, out_shape={problem.out_shape}, "
            f"grid_in={problem.grid_in}, grid_out={problem.grid_out}, theta_cutoff={problem.cutoff}, "
            f"backend={self.backend}"
        )


class AttentionS2(SphericalAttention):
    r"""Multi-head attention of every output point over the whole input sphere, keys weighted by their area.

    .. math:: y_o = \sum_i w_i e^{s\, q_o \cdot k_i} v_i \, / \, \sum_i w_i e^{s\, q_o \cdot k_i}

    with the quadrature weights w of the input grid and the scale s: `NeighborhoodAttentionS2` without a cutoff. It runs
    in torch's fused attention kernels, see `s2attn.ops.weighted_attention`.

    Arguments and parameters carry the names and shapes of torch-harmonics' layer of the same name, so that one can
    stand in for the other and state dicts move both ways.

    Parameters
    ----------
    in_channels : int
        Channels of query, key and value.
    num_heads : int
        Number of heads; divides ``k_channels`` and ``out_channels``.
    in_shape, out_shape : tuple[int, int]
        (nlat, nlon) of key and value, and of query and output; any two.
    grid_in, grid_out : str
        Latitude grids: ``equiangular``, ``legendre-gauss`` or ``lobatto``. The output's does not enter the result.
    scale : float or torch.Tensor, optional
        Factor on the projected query; a tensor of one element may be learnable. Default: 1 / sqrt(k_channels /
        num_heads).
    use_qknorm : bool
        Normalize query and key per head by their root mean square, with learnable gains 1 + q_norm_weights and
        1 + k_norm_weights.
    bias : bool
        Add a bias in all four projections.
    k_channels : int, optional
        Channels of the inner products, over all heads. Default: ``in_channels``.
    out_channels : int, optional
        Channels of the output. Default: ``in_channels``.
    drop_rate : float
        Probability of dropping a weight of the softmax in training mode.

    Raises
    ------
    InvalidProblem
        Naming the argument, what was given and what is expected.

    Notes
    -----
    Forward and, on a CPU, backward are bitwise deterministic. On CUDA torch's fused backward kernels add to the
    gradient of the query in the order in which blocks happen to finish. Under
    ``torch.use_deterministic_algorithms(True)`` FlashAttention and the memory-efficient kernel take a fixed order
    instead, and cuDNN's is not chosen: the backward is bitwise deterministic too. With ``warn_only=True`` they warn and
    stay as they are.
    """

    _log_weight_channels: torch.Tensor
    _log_weight_mask: torch.Tensor

    def __init__(
        self,
        in_channels: int,
        num_heads: int,
        in_shape: tuple[int, int],
        out_shape: tuple[int, int],
        grid_in: str = "equiangular",
        grid_out: str = "equiangular",
        scale: float | torch.Tensor | None = None,
        use_qknorm: bool = False,
        bias: bool = True,
        k_channels: int | None = None,
        out_channels: int | None = None,
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__(in_channels, num_heads, k_channels, out_channels)
        for argument, grid in (("grid_in", grid_in), ("grid_out", grid_out)):
            check_grid(argument, grid)
        self.in_shape = checked_shape("in_shape", in_shape, grid_in)
        self.out_shape = checked_shape("out_shape", out_shape, grid_out)
        self.grid_in = grid_in
        self.grid_out = grid_out
        if not isinstance(drop_rate, int | float) or not 0 <= drop_rate < 1:
            raise InvalidProblem("drop_rate", drop_rate, "a probability below 1")
        self.drop_rate = float(drop_rate)
        weights = torch.tensor(latitude_weights(self.in_shape[0], grid_in))
        self.register_buffer("_log_weight_channels", log_weight_channels(weights), persistent=False)
        self.register_buffer("_log_weight_mask", self._make_mask(), persistent=False)
        # in this order, as in the public layer, which is not that of the other one
        self._set_scale(scale)
        self._make_weights()
        self._make_biases_and_gains(bias=bias, use_qknorm=use_qknorm)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor | None = None, value: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend.

        Parameters
        ----------
        query : torch.Tensor
            [B, in_channels, nlat_out, nlon_out].
        key, value : torch.Tensor, optional
            [B, in_channels, nlat_in, nlon_in]; both or neither. Default: ``query`` (self-attention).

        Returns
        -------
        torch.Tensor
            [B, out_channels, nlat_out, nlon_out], contiguous.

        Raises
        ------
        InvalidProblem
            Extents, dtypes or devices do not fit the layer or each other.
        """
        q, k, v = self._projected((query, key, value), self.out_shape, self.in_shape)
        drop_rate = self.drop_rate if self.training else 0.0
        channels, mask = self._log_weight_channels, self._log_weight_mask
        y = weighted_attention(q, k, v, channels, mask=mask, heads=self.num_heads, drop_rate=drop_rate)
        return to_channels_first(_project(y, self.proj_weights, self.proj_bias))

    def _make_mask(self) -> torch.Tensor:
        return log_weight_mask(self._log_weight_channels, nlon=self.in_shape[1])

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._log_weight_mask = self._make_mask()  # a half type would have rounded the one before
        return self

    def extra_repr(self) -> str:
        """Arguments shown by ``print(layer)``."""
        return (
            f"in_channels={self.in_channels}, k_channels={self.k_channels}, out_channels={self.out_channels}, "
            f"num_heads={self.num_heads}, in_shape={self.in_shape}, out_shape={self.out_shape}, "
            f"grid_in={self.grid_in}, grid_out={self.grid_out}, drop_rate={self.drop_rate}"
        )


def _project(x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """1x1 convolution of NHWC points; the weights keep a convolution's shape [out, in, 1, 1]."""
    return functional.linear(x, weights.flatten(1), bias)


def _glorot(n_out: int, n_in: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_out, n_in, 1, 1)))


def _is_factor(scale: torch.Tensor) -> bool:
    """Whether a tensor is one finite real number; the one of a meta tensor is not there to look at."""
    if scale.numel() != 1 or scale.is_complex() or scale.dtype == torch.bool:
        return False
    return scale.is_meta or math.isfinite(scale.item())


def _zeros(count: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(count))


def _backend(optimized_kernel: bool, backend: str) -> str:
    from s2attn.backends import check_backend  # here: see `neighborhood_attention`

    check_flag("optimized_kernel", optimized_kernel)
    check_backend(backend)
    if optimized_kernel:
        return backend
    if backend not in ("auto", "reference"):
        raise InvalidProblem("optimized_kernel", optimized_kernel, f"True, or no backend={backend!r}")
    return "reference"
