"""Loads what tests of faults share."""

import importlib.util
import sys
from pathlib import Path

for name in ("worker_fixtures", "fault_fixtures"):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])

from fault_fixtures import postgres_server, scene, workers  # noqa: E402
from worker_fixtures import database, database_url, repository  # noqa: E402

__all__ = ["database", "database_url", "postgres_server", "repository", "scene", "workers"]
