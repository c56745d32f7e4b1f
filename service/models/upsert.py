"""Inserts that may be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from service.models.base import Base, utc_now


def insert_missing(session: Session, model: type[Base], key: Mapping[str, Any], values: Mapping[str, Any]) -> UUID:
    """Insert a row unless one with this natural key exists, and return the row's id, whoever inserted it."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    row_id = uuid7()
    statement = dialect.insert(model).values(id=row_id, created_at=utc_now(), **key, **values)
    session.execute(statement.on_conflict_do_nothing())
    columns = model.__table__.c
    found = select(columns.id).where(*(getattr(model, name) == value for name, value in key.items()))
    stored: UUID = session.execute(found).scalar_one()
    return stored


def insert_if_new(session: Session, model: type[Base], values: Mapping[str, Any]) -> UUID | None:
    """Insert a row and return its id; None when any of its unique keys is taken."""
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    row_id = uuid7()
    statement = dialect.insert(model).values(id=row_id, created_at=utc_now(), **values).on_conflict_do_nothing()
    inserted = session.execute(statement.returning(model.__table__.c.id)).scalar_one_or_none()
    return row_id if inserted is not None else None
