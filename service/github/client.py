"""Calls of the GitHub API, as an App's installation or with a token. The only module that uses gidgethub's HTTP.

Every failure is a `GitHubError`, which says whether trying again can help and when. A limit of GitHub's stops all calls
of this client until it is over, and so does, for a short while, a GitHub that does not answer: whoever has other work
goes on with that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import gidgethub
import httpx2
from gidgethub.apps import get_installation_access_token, get_jwt
from gidgethub.httpx import GitHubAPI

from service.models import utc_now
from service.outbox.runner import Refused, TryLater
from service.settings import Settings

REQUESTER = "s2bench"
TIMEOUT_S = 15.0
SECONDARY_LIMIT_PAUSE = timedelta(seconds=60)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
TOKEN_MARGIN = timedelta(minutes=5)
MAX_ITEMS = 3000
LONGEST_LIMIT = timedelta(hours=1)
_NEEDS_APP = ("authenticate via a GitHub App", "not accessible by personal access token")


class Failure(Enum):
    """What a failed call means for the next try."""

    TRANSIENT = "transient"  # GitHub, or the way there, is down
    LIMITED = "limited"  # too many requests; `retry_at` says when
    GONE = "gone"  # there is no such thing, or it is not shown to these credentials
    REFUSED = "refused"  # the same request will be refused again
    NEEDS_APP = "needs_app"  # an App could, a person's token cannot


class GitHubError(Exception):
    """A call that did not succeed, in words without secrets."""

    def __init__(self, message: str, failure: Failure, retry_at: datetime | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.retry_at = retry_at


@dataclass(frozen=True)
class Place:
    """A repository on GitHub: `name` is "owner/name"; `installation_id` that of the App, looked up when unknown."""

    name: str
    installation_id: int | None = None

    @property
    def variables(self) -> dict[str, str]:
        """The variables of a URL template that begins with /repos/{owner}/{repo}."""
        owner, _, repo = self.name.partition("/")
        return {"owner": owner, "repo": repo}


@dataclass(frozen=True)
class Token:
    """An installation token, and until when it is good."""

    value: str = field(repr=False)
    expires_at: datetime


@dataclass
class _Pause:
    until: float = 0.0
    length_s: float = FIRST_PAUSE_S
    why: GitHubError | None = None


@dataclass
class GitHubClient:
    """For one thread: it runs an event loop of its own."""

    settings: Settings
    _tokens: dict[int, Token] = field(default_factory=dict)
    _installations: dict[str, int] = field(default_factory=dict)
    _pause: _Pause = field(default_factory=_Pause)
    _login: str | None = None

    def __post_init__(self) -> None:
        self._runner = asyncio.Runner()
        self._http = httpx2.AsyncClient(timeout=TIMEOUT_S)
        self._api = GitHubAPI(self._http, REQUESTER, base_url=self.settings.github_api_url)
        key_file = self.settings.github_private_key_file
        self._private_key = key_file.read_text() if key_file is not None else ""

    def close(self) -> None:
        """Close the connections."""
        self._runner.run(self._http.aclose())
        self._runner.close()

    def get(self, place: Place, path: str, **variables: str | int) -> Any:
        """GET below the repository."""
        return self._call(place, "GET", path, variables, None)

    def post(self, place: Place, path: str, data: Mapping[str, Any], **variables: str | int) -> Any:
        """POST below the repository."""
        return self._call(place, "POST", path, variables, data)

    def patch(self, place: Place, path: str, data: Mapping[str, Any], **variables: str | int) -> Any:
        """PATCH below the repository."""
        return self._call(place, "PATCH", path, variables, data)

    def items(self, place: Place, path: str, key: str | None = None, **variables: str | int) -> list[Any]:
        """GET a list below the repository, page after page, at most `MAX_ITEMS`; `key` names it in the answer."""
        found: list[Any] = self._guarded(self._items(place, path, key, variables))
        return found

    def is_mine(self, place: Place, comment: Mapping[str, Any]) -> bool:
        """Say whether these credentials wrote a comment."""
        if self.settings.github_app_id is not None:
            app = comment.get("performed_via_github_app") or {}
            return self.settings.github_app_id in {str(app.get("id")), app.get("client_id")}
        if self._login is None:
            self._login = self._guarded(self._request(place, "GET", "/user", {}, None))["login"]
        return bool((comment.get("user") or {}).get("login") == self._login)

    def read_token(self, place: Place) -> Token:
        """Buy a token of the App that may read this one repository's contents and nothing else."""
        token: Token = self._guarded(self._read_token(place))
        return token

    # ---- one call ----

    def _call(
        self, place: Place, method: str, path: str, variables: Mapping[str, str | int], data: Mapping[str, Any] | None
    ) -> Any:
        url = "/repos/{owner}/{repo}" + path
        return self._guarded(self._request(place, method, url, variables, data))

    async def _request(
        self, place: Place, method: str, url: str, variables: Mapping[str, str | int], data: Mapping[str, Any] | None
    ) -> Any:
        token = await self._token(place)
        values = {**place.variables, **{name: str(value) for name, value in variables.items()}}
        if method == "GET":
            return await self._api.getitem(url, values, oauth_token=token)
        send = self._api.post if method == "POST" else self._api.patch
        return await send(url, values, data=data, oauth_token=token)

    async def _items(self, place: Place, path: str, key: str | None, variables: Mapping[str, str | int]) -> list[Any]:
        token = await self._token(place)
        values = {**place.variables, **{name: str(value) for name, value in variables.items()}}
        found: list[Any] = []
        async for item in self._api.getiter(
            "/repos/{owner}/{repo}" + path, values, oauth_token=token, iterable_key=key
        ):
            found.append(item)
            if len(found) >= MAX_ITEMS:
                break
        return found

    async def _token(self, place: Place) -> str:
        settings = self.settings
        if settings.github_token is not None:
            return settings.github_token.get_secret_value()
        assert settings.github_app_id is not None
        installation = await self._installation(place)
        known = self._tokens.get(installation)
        if known is None or known.expires_at - TOKEN_MARGIN < utc_now():
            answer = await get_installation_access_token(
                self._api,
                installation_id=str(installation),
                app_id=settings.github_app_id,
                private_key=self._private_key,
            )
            expires_at = datetime.fromisoformat(answer["expires_at"])
            known = self._tokens[installation] = Token(answer["token"], expires_at)
        return known.value

    async def _read_token(self, place: Place) -> Token:
        wanted = {"repositories": [place.variables["repo"]], "permissions": {"contents": "read"}}
        values = {"id": str(await self._installation(place))}
        answer = await self._api.post("/app/installations/{id}/access_tokens", values, data=wanted, jwt=self._jwt())
        return Token(answer["token"], datetime.fromisoformat(answer["expires_at"]))

    async def _installation(self, place: Place) -> int:
        known = place.installation_id or self._installations.get(place.name)
        if known is None:
            answer = await self._api.getitem("/repos/{owner}/{repo}/installation", place.variables, jwt=self._jwt())
            known = self._installations[place.name] = int(answer["id"])
        return known

    def _jwt(self) -> str:
        assert self.settings.github_app_id is not None
        return get_jwt(app_id=self.settings.github_app_id, private_key=self._private_key)

    # ---- failures ----

    def _guarded(self, coroutine: Any) -> Any:
        if self._pause.why is not None and time.monotonic() < self._pause.until:
            coroutine.close()
            raise self._pause.why
        try:
            answer = self._runner.run(coroutine)
        except (gidgethub.HTTPException, httpx2.HTTPError, ValueError, LookupError, KeyError) as error:
            failed = self._translated(error)
            self._note(failed)
            raise failed from None  # the cause may hold headers
        self._pause = _Pause()
        return answer

    def _note(self, failed: GitHubError) -> None:
        if failed.failure is Failure.LIMITED and failed.retry_at is not None:
            wait_s = max(0.0, (failed.retry_at - utc_now()).total_seconds())
            self._pause = _Pause(time.monotonic() + wait_s, FIRST_PAUSE_S, failed)
        elif failed.failure is Failure.TRANSIENT:
            length_s = self._pause.length_s
            self._pause = _Pause(time.monotonic() + length_s, min(2 * length_s, LONGEST_PAUSE_S), failed)

    def _translated(self, error: Exception) -> GitHubError:
        if not isinstance(error, gidgethub.HTTPException):
            return GitHubError(f"GitHub: {type(error).__name__}: {error}", Failure.TRANSIENT)
        status = int(error.status_code)
        message = f"GitHub answered {status}: {error}"[:500]
        if (retry_at := _limit_ends(error, status)) is not None:
            return GitHubError(message, Failure.LIMITED, min(retry_at, utc_now() + LONGEST_LIMIT))
        if status == 401:  # a new token, or an administrator, will help
            self._tokens.clear()
            return GitHubError(message, Failure.TRANSIENT)
        if status in (404, 410):
            return GitHubError(message, Failure.GONE)
        if status == 403 and any(words in message for words in _NEEDS_APP):
            return GitHubError(message, Failure.NEEDS_APP)
        return GitHubError(message, Failure.TRANSIENT if status >= 500 or status == 408 else Failure.REFUSED)


def _limit_ends(error: gidgethub.HTTPException, status: int) -> datetime | None:
    """Return when a limit that an answer speaks of is over; None when it speaks of none."""
    if isinstance(error, gidgethub.RateLimitExceeded):
        ends: datetime = error.rate_limit.reset_datetime
        return ends + timedelta(seconds=1)
    if status not in (403, 429):
        return None
    wait = error.headers.get("retry-after", "")
    if wait.isdigit():
        return utc_now() + timedelta(seconds=int(wait))
    reset = error.headers.get("x-ratelimit-reset", "")
    if error.headers.get("x-ratelimit-remaining") == "0" and reset.isdigit():
        return datetime.fromtimestamp(int(reset), UTC) + timedelta(seconds=1)
    if status == 429 or "secondary rate limit" in str(error).lower():
        return utc_now() + SECONDARY_LIMIT_PAUSE
    return None


@contextmanager
def as_delivery() -> Iterator[None]:
    """Turn failures of calls into what the outbox does about them."""
    try:
        yield
    except GitHubError as error:
        if error.failure is Failure.LIMITED and error.retry_at is not None:
            raise TryLater(str(error), max(timedelta(0), error.retry_at - utc_now()), untried=True) from error
        if error.failure is Failure.TRANSIENT:
            raise TryLater(str(error)) from error
        raise Refused(str(error)) from error
