"""Transactions on SQLite: write lock from the beginning, turns, undo, and what reading leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError

from service import db
from service.db import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'test.db'}")
    with opened.transaction() as session:
        session.execute(text("CREATE TABLE counter (id INTEGER PRIMARY KEY, value INTEGER NOT NULL)"))
        session.execute(text("INSERT INTO counter VALUES (1, 0)"))
    yield opened
    opened.dispose()


def value(database: Database) -> int:
    with database.reading() as session:
        found: int = session.execute(text("SELECT value FROM counter")).scalar_one()
        return found


def test_sqlite_is_set_up(database: Database) -> None:
    with database.reading() as session:
        pragmas = {
            name: session.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "busy_timeout", "foreign_keys", "synchronous")
        }
    assert pragmas == {"journal_mode": "wal", "busy_timeout": 30000, "foreign_keys": 1, "synchronous": 1}


def test_what_raises_is_undone(database: Database) -> None:
    def work() -> None:
        with database.transaction() as session:
            session.execute(text("UPDATE counter SET value = 5"))
            session.execute(text("INSERT INTO counter VALUES (1, 0)"))

    with pytest.raises(IntegrityError):
        work()
    assert value(database) == 0


def test_reading_keeps_nothing(database: Database) -> None:
    with database.reading() as session:
        session.execute(text("UPDATE counter SET value = 5"))
    assert value(database) == 0


def test_read_then_write_loses_no_update(database: Database, tmp_path: Path) -> None:
    """Two processes' worth of databases, so that the lock inside one does not hide what SQLite does."""
    others = [database, Database(database.url)]

    def work(number: int) -> None:
        for _ in range(20):
            with others[number % 2].transaction() as session:
                found = session.execute(text("SELECT value FROM counter")).scalar_one()
                session.execute(text("UPDATE counter SET value = :value"), {"value": found + 1})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    others[1].dispose()
    assert value(database) == 120


def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    with database.transaction() as session:
        session.execute(text("UPDATE counter SET value = 5"))
        assert value(database) == 0
    assert value(database) == 5


def test_the_log_is_moved_into_the_file_now_and_then(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "CHECKPOINT_COMMITS", 5)
    before = (tmp_path / "test.db").stat().st_size
    for _ in range(10):
        with database.transaction() as session:
            session.execute(text("INSERT INTO counter SELECT max(id) + 1, zeroblob(10000) FROM counter"))
    database.dispose()
    assert (tmp_path / "test.db").stat().st_size > before + 50_000


def test_a_missing_folder_is_an_error_and_not_a_new_database(tmp_path: Path) -> None:
    missing = Database(f"sqlite:///{tmp_path / 'nowhere' / 'x.db'}")
    with pytest.raises(OperationalError):
        missing.ping()


def test_postgres_does_not_wait_for_ever() -> None:
    engine = db.make_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with pytest.raises(OperationalError), engine.connect():
        pass
