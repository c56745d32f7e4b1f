"""Theoretical occupancy: which part of a multiprocessor's warps the resources of a launch let reside on it."""

from __future__ import annotations

from typing import NamedTuple

_WARP = 32
# registers are given to warps in units of 256, and to the four partitions of a multiprocessor evenly
_REGISTERS = 65536
_REGISTER_UNIT = 256
_WARP_UNIT = 4


class Limits(NamedTuple):
    """What one multiprocessor has: most resident warps and blocks, and shared memory with its granularity in bytes.

    ``reserved_bytes`` of shared memory per block belong to the driver.
    """

    warps: int
    blocks: int
    shared_bytes: int
    shared_unit_bytes: int
    reserved_bytes: int


# By compute capability; CUDA C++ Programming Guide, "Compute Capabilities", tables of technical specifications and the
# sections on shared memory of each architecture (with the largest carve-out). Registers are 65536 for all of them.
_LIMITS = {
    "7.5": Limits(32, 16, 64 * 1024, 256, 0),
    "8.0": Limits(64, 32, 164 * 1024, 128, 1024),
    "8.6": Limits(48, 16, 100 * 1024, 128, 1024),
    "8.7": Limits(48, 16, 164 * 1024, 128, 1024),
    "8.9": Limits(48, 24, 100 * 1024, 128, 1024),
    "9.0": Limits(64, 32, 228 * 1024, 128, 1024),
    "10.0": Limits(64, 32, 228 * 1024, 128, 1024),
    "10.3": Limits(64, 32, 228 * 1024, 128, 1024),
    "11.0": Limits(48, 24, 228 * 1024, 128, 1024),
    "12.0": Limits(48, 24, 100 * 1024, 128, 1024),
    "12.1": Limits(48, 24, 100 * 1024, 128, 1024),
}


class Occupancy(NamedTuple):
    """Share of the warps that can be resident (0 to 1), and what keeps it there."""

    share: float
    limited_by: str


def theoretical_occupancy(
    compute_capability: str, *, threads: int, registers: int, shared_bytes: int
) -> Occupancy | None:
    """Return the occupancy of a launch; None for an architecture that the table does not know.

    Parameters
    ----------
    compute_capability
        Of the device, such as ``9.0``.
    threads
        Threads per block.
    registers
        Registers per thread.
    shared_bytes
        Shared memory per block, static and dynamic.

    Notes
    -----
    Blocks on a multiprocessor = the least of: its block limit; warps / warps of a block; warps whose registers fit,
    rounded to the four partitions; shared memory / (shared memory of a block, rounded up). A launch with fewer blocks
    than the device has multiprocessors has less in fact.
    """
    limits = _LIMITS.get(compute_capability)
    if limits is None or threads < 1:
        return None
    warps = _round_up(threads, _WARP) // _WARP
    bounds = {"blocks": limits.blocks, "warps": limits.warps // warps}
    if registers > 0:
        fitting = _REGISTERS // _round_up(registers * _WARP, _REGISTER_UNIT)
        bounds["registers"] = fitting // _WARP_UNIT * _WARP_UNIT // warps
    block_bytes = _round_up(shared_bytes + limits.reserved_bytes, limits.shared_unit_bytes)
    if shared_bytes > 0:
        bounds["shared memory"] = limits.shared_bytes // block_bytes
    # of equal bounds the warps are named first: no resource but the multiprocessor itself is the limit then
    limited_by = min(("warps", *bounds), key=lambda name: bounds[name])
    return Occupancy(bounds[limited_by] * warps / limits.warps, limited_by)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
