"""Commands of the administrator, on the host of the database: schema, tokens, repositories."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from service.command_options import AsJson, DataDir, print_json, settings_for
from service.report import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.orm import Session

token_app = typer.Typer(help="Access tokens of the HTTP API.", no_args_is_help=True)
db_app = typer.Typer(help="The database schema.", no_args_is_help=True)
repository_app = typer.Typer(help="Repositories whose commits may be measured.", no_args_is_help=True)


@contextlib.contextmanager
def transaction(data_dir: Path | None) -> Iterator[Session]:
    """Open a transaction on the database that the settings name."""
    from service.db import Database

    database = Database(settings_for(data_dir).database_url)
    try:
        with database.transaction() as session:
            yield session
    finally:
        database.dispose()


@db_app.command("upgrade")
def db_upgrade(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Bring the database to the newest schema; also makes the queue engine's own tables."""
    from service.db import head_revision
    from service.embedded import prepare_database

    settings = settings_for(data_dir)
    prepare_database(settings)
    url = settings.public_database_url
    print_json({"database": url, "revision": head_revision()}) if as_json else print(f"{url}: up to date")


@db_app.command("check")
def db_check(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Say whether the database is at the newest schema and matches the models."""
    from service import db

    settings = settings_for(data_dir)
    problems = db.check(settings.database_url)
    if as_json:
        print_json({"database": settings.public_database_url, "problems": problems})
    else:
        print("\n".join(problems) or f"{settings.public_database_url}: up to date, no drift")
    if problems:
        raise typer.Exit(Exit.INFRASTRUCTURE)


@token_app.command("create")
def token_create(
    name: Annotated[str, typer.Argument(help="Whose token this is.")],
    scope: Annotated[list[str] | None, typer.Option(help="submit, triage, worker or admin; may be repeated.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create an access token and print it; it is shown this once, only its hash is stored."""
    from service.auth import create_token

    scopes = scope or ["submit"]
    with transaction(data_dir) as session:
        secret = create_token(session, name, scopes)
    print_json({"name": name, "scopes": scopes, "token": secret}) if as_json else print(secret)


@token_app.command("list")
def token_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the tokens; what can be shown of them is when they were made, used and revoked."""
    from service.auth import list_tokens

    with transaction(data_dir) as session:
        rows: list[dict[str, Any]] = [
            {
                "id": token.id,
                "name": token.name,
                "scopes": token.scopes,
                "created_at": token.created_at,
                "last_used_at": token.last_used_at,
                "revoked_at": token.revoked_at,
            }
            for token in list_tokens(session)
        ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        state = f"revoked {row['revoked_at']:%F}" if row["revoked_at"] else "valid"
        used = f"last used {row['last_used_at']:%F}" if row["last_used_at"] else "never used"
        print(f"{row['id']}  {row['name']}  {','.join(row['scopes'])}  {used}  {state}")


@token_app.command("revoke")
def token_revoke(
    token_id: Annotated[UUID, typer.Argument(help="Id of the token, as `token list` shows it.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token; it opens nothing from then on. A revoked one stays revoked."""
    from service.auth import revoke_token

    with transaction(data_dir) as session:
        token = revoke_token(session, token_id)
        name = token.name
    print_json({"id": token_id, "name": name, "revoked": True}) if as_json else print(f"{name}: revoked")


@repository_app.command("add")
def repository_add(
    name: Annotated[str, typer.Argument(help="Name that jobs use.")],
    url: Annotated[str, typer.Argument(help="Path or URL to fetch from.")],
    default_branch: Annotated[str, typer.Option(help="Branch of the baseline `auto`.")] = "main",
    github: Annotated[str | None, typer.Option(help="owner/name on GitHub, to answer its pull requests.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Register a repository, or change its URL and default branch."""
    from service.repositories.service import register

    with transaction(data_dir) as session:
        row = register(session, name, url, default_branch, github)
        stored = {"name": name, "url": url, "default_branch": default_branch, "github": row.github}
    print_json(stored) if as_json else print(f"{name}: {url}")
