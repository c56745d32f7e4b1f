"""Databases for tests of repositories."""

from worker_fixtures import database, database_url

__all__ = ["database", "database_url"]
