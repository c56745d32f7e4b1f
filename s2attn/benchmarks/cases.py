"""What a benchmark case is: a frozen definition, its name, and the version that hashes the definition.

A case names a workload and how it is timed, never a machine: the same definition has the same version everywhere, so a
series of points can be told apart from the series of a changed workload.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

Device = Literal["cpu", "cuda"]
Operation = Literal["forward", "backward", "forward-backward", "module-forward", "module-forward-backward"]

# Raise when the way of timing changes so that old and new numbers must not share a series (warm-ups, rotation of the
# inputs, what lies inside a sample).
TIMING_CONTRACT = 1

_CALLED = {
    (False, False): "neighborhood_attention",
    (False, True): "NeighborhoodAttentionS2",
    (True, False): "weighted_attention",
    (True, True): "AttentionS2",
}
_DTYPE_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One benchmark case of neighborhood or global attention on the sphere.

    Attributes
    ----------
    device
        ``"cpu"`` or ``"cuda"``.
    operation
        Of the operator: ``"forward"`` or ``"backward"`` (all of dq, dk and dv from a saved forward); of global
        attention, whose backward is autograd's, ``"forward-backward"`` instead. Of the layer, `NeighborhoodAttentionS2`
        or `AttentionS2`, with its projections: ``"module-forward"`` (no gradients recorded) or
        ``"module-forward-backward"`` (gradients of the inputs and of every parameter).
    suite
        Name of the suite the case belongs to; not part of the definition.
    in_shape, out_shape
        ``(nlat, nlon)`` of keys/values and of queries.
    theta_cutoff
        Cutoff in radians, as given to the problem (before its relative slack); None for global attention.
    psi_nnz
        Entries of the sparsity pattern. Declared here, so that listing builds no geometry and a version cannot depend
        on the rounding of a machine; a run compares it with the pattern that was built. None for global attention.
    heads, channels_in, channels_out, batch
        Channels are totals over the heads.
    input_sets
        Sets of inputs that successive samples rotate over, so that a cache does not serve the whole case.
    flush_l2
        Whether the device's L2 cache is overwritten before each sample.
    calls_per_sample
        Calls that one sample times (and is divided by): small working sets, which disturb each other's caches least, in
        samples that are long against a context switch. CPU only.
    threads
        CPU threads that torch and the kernels may use; None on a GPU.
    """

    device: Device
    operation: Operation
    suite: str
    in_shape: tuple[int, int]
    out_shape: tuple[int, int]
    theta_cutoff: float | None
    psi_nnz: int | None
    heads: int = 1
    channels_in: int = 16
    channels_out: int = 16
    batch: int = 1
    dtype: str = "float32"
    grid_in: str = "equiangular"
    grid_out: str = "equiangular"
    input_sets: int = 1
    flush_l2: bool = False
    calls_per_sample: int = 1
    threads: int | None = None

    @property
    def is_global(self) -> bool:
        """Whether every query sees every key: `AttentionS2` and its operator."""
        return self.theta_cutoff is None

    @property
    def is_module(self) -> bool:
        """Whether the layer is called, not the operator alone."""
        return self.operation.startswith("module-")

    @property
    def direction(self) -> Literal["self", "down", "up"]:
        """``"self"``, ``"down"`` (fewer output longitudes than input longitudes) or ``"up"``."""
        if (self.in_shape, self.grid_in) == (self.out_shape, self.grid_out):
            return "self"
        return "down" if self.in_shape[1] >= self.out_shape[1] else "up"

    @property
    def name(self) -> str:
        """``device/operation/direction/grids/channels/dtype/cutoff``, for example
        ``cpu/forward/self/24x48/c16h1/fp32/tc0.2``; instead of a cutoff global attention has ``global``.
        """
        grids = _grid_name(self.in_shape, self.grid_in)
        if self.direction != "self":
            grids += "-" + _grid_name(self.out_shape, self.grid_out)
        channels = f"c{self.channels_in}"
        if self.channels_out != self.channels_in:
            channels += f"-{self.channels_out}"
        parts = [self.device, self.operation, self.direction, grids, f"{channels}h{self.heads}"]
        parts += [_DTYPE_NAMES[self.dtype], "global" if self.is_global else f"tc{self.theta_cutoff:g}"]
        if self.batch != 1:
            parts.append(f"b{self.batch}")
        if self.flush_l2:
            parts.append("cold")
        return "/".join(parts)

    @property
    def group(self) -> str:
        """Kernel group: cases whose speed one kernel decides, for example ``cpu.forward`` or ``cpu.global.forward``."""
        return f"{self.device}.global.{self.operation}" if self.is_global else f"{self.device}.{self.operation}"

    @property
    def definition(self) -> dict[str, Any]:
        """Everything that makes up the workload and its timing, as JSON values."""
        definition = {
            "op": _CALLED[self.is_global, self.is_module],
            "operation": self.operation,
            "device": self.device,
            "direction": self.direction,
            "in_shape": list(self.in_shape),
            "out_shape": list(self.out_shape),
            "grid_in": self.grid_in,
            "grid_out": self.grid_out,
            "theta_cutoff": self.theta_cutoff,
            "psi_nnz": self.psi_nnz,
            "heads": self.heads,
            "channels_in": self.channels_in,
            "channels_out": self.channels_out,
            "batch": self.batch,
            "dtype": self.dtype,
            "input_sets": self.input_sets,
            "flush_l2": self.flush_l2,
            "calls_per_sample": self.calls_per_sample,
            "threads": self.threads,
            "timing_contract": TIMING_CONTRACT,
        }
        if self.is_global:
            del definition["theta_cutoff"], definition["psi_nnz"]
        return definition

    @property
    def version(self) -> str:
        """First 16 hexadecimal digits of the sha256 of the definition's canonical JSON."""
        canonical = json.dumps(self.definition, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode("utf-8")).hexdigest()[:16]

    @property
    def seed(self) -> int:
        """Seed of the case's inputs, drawn from its name: the same on every machine and for every commit."""
        return int.from_bytes(hashlib.sha256(self.name.encode("utf-8")).digest()[:4], "little")

    def listing(self) -> dict[str, Any]:
        """Return the case as one entry of the ``list`` command."""
        return {
            "name": self.name,
            "version": self.version,
            "group": self.group,
            "device": self.device,
            "suite": self.suite,
            "definition": self.definition,
        }


def _grid_name(shape: tuple[int, int], grid: str) -> str:
    suffix = "" if grid == "equiangular" else grid
    return f"{shape[0]}x{shape[1]}{suffix}"
