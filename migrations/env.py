"""Runs migrations on the connection that service/db.py passes, in the transaction that it began."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import JSON
from sqlalchemy.types import TypeDecorator


def render_item(kind: str, item: Any, autogenerate: AutogenContext) -> str | Literal[False]:
    """Write the service's own column types as the plain types under them: a version imports no service code."""
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl!r}"
    if kind == "type" and isinstance(item, JSON):
        autogenerate.imports.add("from sqlalchemy.dialects import postgresql")
        return 'sa.JSON().with_variant(postgresql.JSONB(), "postgresql")'
    return False


def run_migrations() -> None:
    """Run what the command asks for."""
    attributes = context.config.attributes
    if "connection" not in attributes:
        raise RuntimeError("migrations: got no connection, expected to be run by `s2bench db upgrade`")
    context.configure(
        connection=attributes["connection"],
        target_metadata=attributes["target_metadata"],
        include_object=attributes["include_object"],
        render_item=render_item,
        render_as_batch=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run_migrations()
