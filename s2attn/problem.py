"""What is to be computed: shapes, grids, cutoff, heads, channels and dtype of one attention problem."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from s2attn.errors import InvalidProblem
from s2attn.geometry.grids import Direction, GridPair
from s2attn.geometry.neighborhood import check_theta_cutoff, default_theta_cutoff

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class AttentionProblem:
    """One neighborhood attention problem, validated when it is made.

    Parameters
    ----------
    in_shape, out_shape : tuple[int, int]
        (nlat, nlon) of keys and values, and of queries. One number of longitudes must be a multiple of the other.
    grid_in, grid_out : str
        Latitude grids: ``equiangular``, ``legendre-gauss`` or ``lobatto``.
    theta_cutoff : float, optional
        Radius of the neighborhoods in radians. Default: largest colatitude gap of the coarser grid.
    heads : int
        Number of heads, packed in the channels; divides both channel counts.
    channels_in : int
        Channels of q and of k, over all heads.
    channels_out : int
        Channels of v and of y, over all heads.
    dtype : torch.dtype
        Of q, k, v and y.

    Raises
    ------
    InvalidProblem
        Naming the argument, what was given and what is expected.
    """

    in_shape: tuple[int, int]
    out_shape: tuple[int, int]
    grid_in: str = "equiangular"
    grid_out: str = "equiangular"
    theta_cutoff: float | None = None
    heads: int = 1
    channels_in: int = 1
    channels_out: int = 1
    dtype: torch.dtype = torch.float32
    grids: GridPair = field(init=False, repr=False, compare=False)
    cutoff: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        grids = GridPair(self.in_shape, self.out_shape, self.grid_in, self.grid_out)
        object.__setattr__(self, "grids", grids)
        object.__setattr__(self, "in_shape", grids.in_shape)
        object.__setattr__(self, "out_shape", grids.out_shape)
        if self.theta_cutoff is None:
            cutoff = default_theta_cutoff(grids.in_shape, grids.out_shape, grids.grid_in, grids.grid_out)
        else:
            cutoff = check_theta_cutoff(self.theta_cutoff)
        object.__setattr__(self, "cutoff", cutoff)
        check_positive("heads", self.heads)
        check_channels("channels_in", self.channels_in, self.heads)
        check_channels("channels_out", self.channels_out, self.heads)
        if self.dtype not in DTYPES:
            raise InvalidProblem("dtype", self.dtype, f"one of {', '.join(map(str, DTYPES))}")

    @property
    def direction(self) -> Direction:
        """``downsample`` (self-attention included) or ``upsample``."""
        return self.grids.direction

    @property
    def pscale(self) -> int:
        """Ratio of the longitudes, the finer over the coarser grid."""
        return self.grids.pscale

    @property
    def column_shape(self) -> tuple[int, int]:
        """(nlat, nlon) of the grid whose points are the columns of psi."""
        return self.grids.column_shape

    @property
    def nlat_in(self) -> int:
        """Latitudes of keys and values."""
        return self.in_shape[0]

    @property
    def nlon_in(self) -> int:
        """Longitudes of keys and values."""
        return self.in_shape[1]

    @property
    def nlat_out(self) -> int:
        """Latitudes of queries."""
        return self.out_shape[0]

    @property
    def nlon_out(self) -> int:
        """Longitudes of queries."""
        return self.out_shape[1]

    def query_tensor_shape(self, batch: int) -> tuple[int, int, int, int]:
        """NHWC shape of q."""
        return (batch, *self.out_shape, self.channels_in)

    def key_tensor_shape(self, batch: int) -> tuple[int, int, int, int]:
        """NHWC shape of k."""
        return (batch, *self.in_shape, self.channels_in)

    def value_tensor_shape(self, batch: int) -> tuple[int, int, int, int]:
        """NHWC shape of v."""
        return (batch, *self.in_shape, self.channels_out)

    def output_tensor_shape(self, batch: int) -> tuple[int, int, int, int]:
        """NHWC shape of y."""
        return (batch, *self.out_shape, self.channels_out)


def check_positive(argument: str, value: object) -> None:
    """Raise `InvalidProblem` naming ``argument`` unless ``value`` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidProblem(argument, value, "a positive integer")


def check_flag(argument: str, value: object) -> None:
    """Raise `InvalidProblem` naming ``argument`` unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise InvalidProblem(argument, value, "True or False")


def check_signal(argument: str, x: object) -> None:
    """Raise `InvalidProblem` naming ``argument`` unless ``x`` is a dense tensor."""
    if not isinstance(x, torch.Tensor):
        raise InvalidProblem(argument, type(x).__name__, "a tensor")
    if x.layout != torch.strided:
        raise InvalidProblem(argument, x.layout, "a dense tensor")


def check_channels(argument: str, channels: int, heads: int) -> None:
    """Raise `InvalidProblem` naming ``argument`` unless ``channels`` is a positive multiple of ``heads``."""
    check_positive(argument, channels)
    if channels % heads:
        raise InvalidProblem(argument, channels, f"a multiple of the number of heads, {heads}")
