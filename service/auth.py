"""Access tokens: who may write, and who may read when reading is not public.

A token is 256 random bits; only its sha256 is stored, so a copy of the database opens nothing. While no token exists,
requests from this very machine may do everything and all others may only read: there is no default secret.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from sqlalchemy import exists, select, update
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from service.context import Context
from service.db import Database
from service.errors import Forbidden, InvalidInput, Unauthenticated
from service.models import Token, utc_now

SCOPES = frozenset({"submit", "triage", "worker", "admin"})
PREFIX = "s2b_"
LAST_USED_RESOLUTION = timedelta(minutes=10)
_TOKENS_EXIST = select(exists(select(Token.id)))
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Principal:
    """Who asks. `admin` may do everything."""

    token_id: UUID | None
    name: str
    scopes: frozenset[str]
    stale: bool = False  # its use was last recorded some time ago

    def may(self, scope: str) -> bool:
        """Say whether this principal has a scope."""
        return scope in self.scopes or "admin" in self.scopes


LOCAL = Principal(None, "loopback", frozenset({"admin"}))
ANYBODY = Principal(None, "anybody", frozenset())


def token_hash(secret: str) -> str:
    """Return what is stored of a token."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def create_token(session: Session, name: str, scopes: Iterable[str]) -> str:
    """Store a new token in the session's transaction and return its secret, which is shown this once."""
    wanted = sorted(set(scopes))
    if not wanted or not SCOPES.issuperset(wanted):
        raise InvalidInput.of("invalid_scope", "scopes", ", ".join(wanted), f"some of {', '.join(sorted(SCOPES))}")
    if not name or len(name) > 120 or not name.isprintable():
        raise InvalidInput.of("invalid_name", "name", name, "1 to 120 printable characters")
    secret = PREFIX + secrets.token_urlsafe(32)
    session.add(Token(name=name, sha256=token_hash(secret), scopes=wanted))
    return secret


def list_tokens(session: Session) -> list[Token]:
    """Return every token, oldest first."""
    return list(session.scalars(select(Token).order_by(Token.id)))


def revoke_token(session: Session, token_id: UUID) -> Token:
    """Revoke a token; one that is revoked already keeps its date."""
    token = session.get(Token, token_id)
    if token is None:
        raise InvalidInput.of("unknown_token", "token_id", str(token_id), "the id of a token (`s2bench token list`)")
    token.revoked_at = token.revoked_at or utc_now()
    return token


@dataclass(frozen=True)
class Caller:
    """What a request says of its sender: the token it carries, and whether it was made on this machine."""

    secret: str | None
    local: bool
    address: str

    @property
    def rate_key(self) -> str:
        """Whose writes are counted together."""
        return self.address if self.secret is None else token_hash(self.secret)


def authenticate(session: Session, callers: Collection[Caller]) -> dict[Caller, Principal | Unauthenticated]:
    """Return who each caller is; an error for one with an unknown token, and for one without where a token is due."""
    hashes = {token_hash(caller.secret) for caller in callers if caller.secret is not None}
    known = {}
    if hashes:
        query = select(Token).where(Token.sha256.in_(hashes), Token.revoked_at.is_(None))
        known = {token.sha256: token for token in session.execute(query).scalars()}
    tokens_exist = bool(known) or session.execute(_TOKENS_EXIST).scalar_one()
    found: dict[Caller, Principal | Unauthenticated] = {}
    for caller in callers:
        if caller.secret is None:
            found[caller] = LOCAL if caller.local and not tokens_exist else _token_required(tokens_exist)
        elif (token := known.get(token_hash(caller.secret))) is not None:
            found[caller] = Principal(token.id, token.name, frozenset(token.scopes), _is_stale(token.last_used_at))
        else:
            message = "the token is unknown or revoked: ask an administrator for a new one"
            found[caller] = _unauthenticated("invalid_token", message)
    return found


def authorized(found: Principal | Unauthenticated, scope: str) -> Principal:
    """Return an authenticated principal that has a scope; raises what is in the way."""
    if isinstance(found, Unauthenticated):
        raise found
    if not found.may(scope):
        raise Forbidden("missing_scope", f"the token {found.name!r} lacks the scope {scope!r}: use one that has it")
    return found


def note_use(database: Database, principals: Iterable[Principal]) -> None:
    """Record that tokens were used, where that was last recorded some time ago."""
    ids = {principal.token_id for principal in principals if principal.stale}
    if ids:
        with database.transaction() as session:
            session.execute(update(Token).where(Token.id.in_(ids)).values(last_used_at=utc_now()))


def _is_stale(last_used_at: datetime | None) -> bool:
    return last_used_at is None or utc_now() - last_used_at > LAST_USED_RESOLUTION


def _token_required(tokens_exist: bool) -> Unauthenticated:
    remedy = "send `Authorization: Bearer <token>`; an administrator makes tokens with `s2bench token create`"
    where = "" if tokens_exist else ", and as long as no token exists only requests from the server's own machine may"
    return _unauthenticated("token_required", f"this needs a token{where}: {remedy}")


def _unauthenticated(code: str, message: str) -> Unauthenticated:
    return Unauthenticated(code, message, headers={"WWW-Authenticate": 'Bearer realm="s2bench"'})


def is_local(request: Request) -> bool:
    """Say whether a request was made on this machine by something other than a foreign web page.

    A browser on this machine can be told by any page to send requests here: those carry the page's Origin, or (a name
    that was pointed at 127.0.0.1 after the page had loaded) a Host that is not a loopback name. A proxy on this
    machine speaks for others, and says so in its headers.
    """
    if request.client is None or not _is_loopback_address(request.client.host):
        return False
    headers = request.headers
    if any(name in headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "via")):
        return False
    host = headers.get("host", "")
    try:
        host_name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if host_name not in _LOOPBACK_NAMES:
        return False
    origin = headers.get("origin")
    return origin is None or origin == f"{request.url.scheme}://{host}"


def _is_loopback_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def caller_of(request: Request) -> Caller:
    """Return who sent a request; raises Unauthenticated for another kind of credentials than a token."""
    address = request.client.host if request.client else ""
    authorization = request.headers.get("authorization")
    if authorization is None:
        return Caller(None, is_local(request), address)
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise _unauthenticated("invalid_token", "Authorization: got another scheme, expected `Bearer <token>`")
    return Caller(secret.strip(), is_local(request), address)


class _TokenScheme(HTTPBearer):
    """`caller_of` as a security scheme, so that the OpenAPI document shows which routes take a token."""

    async def __call__(self, request: Request) -> Caller:  # type: ignore[override]
        return caller_of(request)


token_scheme = _TokenScheme(scheme_name="token", description="Made by `s2bench token create`")
RequestCaller = Annotated[Caller, Depends(token_scheme)]


def _identify(database: Database, caller: Caller, scope: str | None) -> Principal:
    with database.reading() as session:
        found = authenticate(session, [caller])[caller]
    if isinstance(found, Unauthenticated):
        raise found
    principal = authorized(found, scope) if scope is not None else found
    note_use(database, [principal])
    return principal


def require(scope: str) -> Callable[..., Awaitable[Principal]]:
    """Return the dependency of writing routes that need a scope."""

    async def principal(context: Context, caller: RequestCaller) -> Principal:
        found = await run_in_threadpool(_identify, context.database, caller, scope)
        context.write_rate.count(caller.rate_key)
        return found

    return principal


async def _reader(context: Context, caller: RequestCaller) -> Principal:
    if context.settings.public_read and caller.secret is None:
        return ANYBODY
    return await run_in_threadpool(_identify, context.database, caller, None)


Reader = Annotated[Principal, Depends(_reader)]
Submitter = Annotated[Principal, Depends(require("submit"))]
Triager = Annotated[Principal, Depends(require("triage"))]
Administrator = Annotated[Principal, Depends(require("admin"))]
