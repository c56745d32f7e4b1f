"""Fixtures that tests of the worker share."""

from worker_fixtures import confined, database, database_url, repository, sandbox

__all__ = ["confined", "database", "database_url", "repository", "sandbox"]
