"""Where this package keeps what it made: compiled kernels and large neighborhoods."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_dir() -> Path:
    """Return ``$S2ATTN_CACHE_DIR``, or ``~/.cache/s2attn`` where that is not set."""
    configured = os.environ.get("S2ATTN_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "s2attn"
