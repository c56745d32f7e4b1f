"""How remote repositories are reached: credentials are in the environment of the git that fetches, nowhere else.

Not in its arguments, which every process of the host can read; not in a configuration file or a mirror, which outlive
it; not in what it says when it fails.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

# From the URL of a repository to "user:password"; None for one that is asked for nothing.
Access = Callable[[str], str | None]
_SCHEMES = frozenset({"http", "https"})


def anonymous(_url: str) -> str | None:
    """Ask for nothing."""
    return None


def without_credentials(url: str) -> str:
    """Return a URL without the user name and password in it; those of ssh are no secret and stay."""
    parts = urlsplit(url) if "://" in url else None
    if parts is None or parts.scheme not in _SCHEMES:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def fetch_environment(url: str, access: Access) -> dict[str, str]:
    """Return the variables by which git, and no other program, authenticates at `url` and what lies below it.

    Credentials that an administrator wrote into the URL count before those of `access`.
    """
    if urlsplit(url).scheme not in _SCHEMES:
        return {}
    credentials = _written_in(url) or access(url)
    if credentials is None:
        return {}
    encoded = base64.b64encode(credentials.encode()).decode()
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{without_credentials(url)}.extraHeader",
        "GIT_CONFIG_VALUE_0": f"Authorization: Basic {encoded}",
    }


def _written_in(url: str) -> str | None:
    user, found, _ = urlsplit(url).netloc.rpartition("@")
    name, _, password = user.partition(":")
    return f"{unquote(name)}:{unquote(password)}" if found else None
