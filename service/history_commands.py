"""`s2bench history`: histories of series, on the host of the database."""

from __future__ import annotations

from typing import Annotated

import typer

from service.command_options import AsJson, DataDir, print_json, settings_for

history_app = typer.Typer(help="Histories: what the series say of commits.", no_args_is_help=True)


@history_app.command("rebuild")
def history_rebuild(
    repository: Annotated[str | None, typer.Option(help="Registered name; default: every repository.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Derive every history again from what was measured; this also takes in what is older than histories are."""
    from service.db import Database
    from service.engine import enqueue_measurements
    from service.history import queries
    from service.history.rebuilding import rebuild
    from service.repositories.service import get

    database = Database(settings_for(data_dir).database_url)
    try:
        with database.reading() as session:
            repository_id = get(session, repository).id if repository is not None else None
            found = queries.of_repository(session, repository_id)
        changes = 0
        for series_id in found:  # each in a transaction of its own: workers go on in between
            with database.transaction() as session:
                changes += len(rebuild(session, enqueue_measurements, series_id).changes)
    finally:
        database.dispose()
    if as_json:
        print_json({"series": len(found), "changes": changes})
    else:
        print(f"{len(found)} series, {changes} change points")
