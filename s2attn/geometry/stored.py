"""Gather tables of large grids, kept on disk across processes.

One file per pair of grids, cutoff, format and geometry code: ``<cache>/neighborhoods/<key>.npz``. A file counts only if
it says what it is of and its digest fits; anything else is built anew and replaced. psi is not stored: it is the
reference that the tables are checked with, so it always comes from the grids.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2attn.cache import default_cache_dir
from s2attn.geometry.arcs import ArcArray
from s2attn.geometry.grids import GridPair

FORMAT = 1

# Column points from which on tables are kept. With a cutoff of 0.03 a quarter degree takes 22 ms to build and 2.3 ms to
# read in fresh processes, half a degree 2.4 and 0.6 ms, one degree 0.6 ms either way (2 vCPU EPYC, 2026-11-30).
_LEAST_POINTS = 1 << 17


class Tables(NamedTuple):
    """The arrays of the two gather tables."""

    query_arcs: ArcArray
    query_arc_off: ArcArray
    key_arcs: ArcArray
    key_arc_off: ArcArray


def load_tables(grids: GridPair, theta_cutoff: float) -> Tables | None:
    """Return the tables that an earlier process left, read-only; None where there are none that can be trusted."""
    if not _worth_keeping(grids):
        return None
    header = _header(grids, theta_cutoff)
    try:
        # through memory: numpy leaves a damaged file open
        with np.load(io.BytesIO(_path(header).read_bytes()), allow_pickle=False) as file:
            tables = Tables(*(file[name] for name in Tables._fields))
            genuine = file["header"].tobytes() == header and file["digest"].tobytes() == _digest(header, tables)
    except Exception:  # whatever a missing, damaged or foreign file makes zipfile and numpy raise: it does not count
        return None
    if not genuine:
        return None
    for array in tables:
        array.flags.writeable = False
    return tables


def store_tables(grids: GridPair, theta_cutoff: float, tables: Tables) -> None:
    """Leave the tables for later processes, if they are worth it and the cache can be written to."""
    if not _worth_keeping(grids):
        return
    header = _header(grids, theta_cutoff)
    buffer = io.BytesIO()
    header_bytes, digest = (np.frombuffer(mark, np.uint8) for mark in (header, _digest(header, tables)))
    np.savez(buffer, header=header_bytes, digest=digest, **tables._asdict())
    path = _path(header)
    # a cache that cannot be written to is no error: the tables are there, only not for others
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, buffer.getvalue())


def _write(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old one or all of the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _worth_keeping(grids: GridPair) -> bool:
    return math.prod(grids.column_shape) >= _LEAST_POINTS


def _header(grids: GridPair, theta_cutoff: float) -> bytes:
    """Everything that the tables depend on, as canonical JSON."""
    definition = {
        "format": FORMAT,
        "code": _code(),
        "in": [*grids.in_shape, grids.grid_in],
        "out": [*grids.out_shape, grids.grid_out],
        "theta_cutoff": theta_cutoff.hex(),
    }
    return json.dumps(definition, sort_keys=True).encode()


@lru_cache(maxsize=1)
def _code() -> str:
    """Digest of the sources of this package's geometry, so that no commit reads the tables of another geometry."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _path(header: bytes) -> Path:
    return default_cache_dir() / "neighborhoods" / f"{hashlib.sha256(header).hexdigest()[:24]}.npz"


def _digest(header: bytes, tables: Tables) -> bytes:
    digest = hashlib.sha256(header)
    for array in tables:
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()
