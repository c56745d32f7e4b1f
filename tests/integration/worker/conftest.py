"""Loads what tests of the worker share."""

import importlib.util
import sys
from pathlib import Path

for name in ("worker_fixtures",):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])

from worker_fixtures import confined, database, database_url, repository, sandbox  # noqa: E402

__all__ = ["confined", "database", "database_url", "repository", "sandbox"]
