"""Lets git fetch private repositories: with the token, or with one of the App's.

The App's token is bought for one repository, reads its contents and nothing else, and is good for an hour. Nobody buys
one unless an administrator says that there are private repositories.
"""

from __future__ import annotations

import threading
from datetime import timedelta

from service.github.client import Failure, GitHubClient, GitHubError, Place, Token
from service.models import utc_now
from service.settings import Settings
from service.worker.access import Access, anonymous
from service.worker.errors import JobError, Kind

USER = "x-access-token"
MARGIN = timedelta(minutes=15)  # a fetch may take ten


def fetch_access(settings: Settings) -> Access:
    """Return how this process reaches remote repositories: with credentials where some are private, else without."""
    return GitHubAccess(settings) if settings.private_repositories and settings.answers_github else anonymous


class GitHubAccess:
    """Credentials for repositories of the GitHub that the settings name, and for no other host."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._tokens: dict[str, Token] = {}

    def __call__(self, url: str) -> str | None:
        """Return "user:password" for the URL of a repository; None where it is not ours to read.

        Raises
        ------
        JobError
            Transient, when GitHub gives no token now.
        """
        beginning, _, name = url.partition(f"{self._settings.github_url}/")
        name = name.removesuffix("/").removesuffix(".git")
        if beginning or name.count("/") != 1:
            return None
        if self._settings.github_token is not None:
            return f"{USER}:{self._settings.github_token.get_secret_value()}"
        with self._lock:
            token = self._tokens.get(name)
            if token is None or token.expires_at - MARGIN < utc_now():
                token = self._bought(name)
        return None if token is None else f"{USER}:{token.value}"

    def _bought(self, name: str) -> Token | None:
        client = GitHubClient(self._settings)
        try:
            self._tokens[name] = client.read_token(Place(name))
        except GitHubError as error:
            if error.failure is Failure.GONE:
                return None  # the App is not installed there: it is public, or git will say that it is not
            raise JobError("checkout_failed", str(error), stage="checkout", kind=Kind.TRANSIENT) from error
        finally:
            client.close()
        return self._tokens[name]
