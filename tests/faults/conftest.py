"""Fixtures that tests of faults share."""

from fault_fixtures import postgres_server, scene, workers
from worker_fixtures import database, database_url, repository

__all__ = ["database", "database_url", "postgres_server", "repository", "scene", "workers"]
