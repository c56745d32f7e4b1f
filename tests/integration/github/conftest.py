"""Fixtures that tests of the pull-request loop share."""

from github_fixtures import fake, loop, repository, settings

__all__ = ["fake", "loop", "repository", "settings"]
