"""The database: engines, transactions (the only commit of the service) and the schema's version.

SQLite runs in WAL mode. A writing transaction takes the write lock when it begins: one that reads first and writes
later would otherwise fail at once with "database is locked" as soon as another has written in between, whatever the
busy timeout. Writers of one process take turns at a lock of this module, which wakes the next one at once; SQLite's
own waiting sleeps up to 100 ms between attempts.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

if TYPE_CHECKING:
    from alembic.config import Config

DATABASE_AWAY = (OperationalError, InterfaceError, PoolTimeout)
MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
BUSY_TIMEOUT_MS = 30_000
# SQLite lets the commit that fills the log pay for emptying it: 40 ms for 10,000 pages on 2 cores, 2026-11-30. So that
# is left to a thread well before, and is the commit's business only when the thread cannot keep up.
CHECKPOINT_COMMITS = 200
CHECKPOINT_PAGES = 10_000
CONNECT_TIMEOUT_S = 5
POOL_TIMEOUT_S = 10
_UPGRADE_LOCK = 0x73326265  # an arbitrary constant: the advisory lock of upgrades


def make_engine(url: str) -> Engine:
    """Return an engine for a SQLite file or a PostgreSQL database."""
    if make_url(url).get_backend_name() == "sqlite":
        engine = create_engine(url, pool_size=8, max_overflow=56, pool_timeout=POOL_TIMEOUT_S)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(
        url,
        pool_size=8,
        max_overflow=12,
        pool_timeout=POOL_TIMEOUT_S,
        pool_pre_ping=True,
        connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "s2bench"},
    )


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions are begun by _begin_sqlite alone
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    reading = connection.get_execution_options().get("s2bench_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


class _Checkpoints:
    """Moves SQLite's write-ahead log into the database file now and then, in a thread that blocks nobody."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commits = itertools.count(1)
        self._thread: threading.Thread | None = None

    def note_commit(self) -> None:
        """Count a commit, and begin when it is time."""
        if next(self._commits) % CHECKPOINT_COMMITS == 0 and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pooled = self._engine.raw_connection()  # without a transaction: that would take the write lock
        try:
            pooled.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            pooled.close()

    def wait(self) -> None:
        """Return when no checkpoint is at work."""
        if self._thread is not None:
            self._thread.join()


class Database:
    """The database at a URL: opens transactions and short read-only sessions."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = make_engine(url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        self._turn = threading.Lock() if self.is_sqlite else contextlib.nullcontext()
        self._checkpoints = _Checkpoints(self.engine) if self.is_sqlite else None
        self._writing = sessionmaker(self.engine, expire_on_commit=False)
        reading_engine = self.engine.execution_options(s2bench_reading=True)
        self._reading = sessionmaker(reading_engine, expire_on_commit=False, autoflush=False)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open a session whose work is committed when the block ends, or undone when it raises. Do not nest."""
        with self._turn, self._writing() as session:
            yield session
            session.commit()
        if self._checkpoints is not None:
            self._checkpoints.note_commit()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session for reading: nothing written in it is kept."""
        with self._reading() as session:
            yield session

    def ping(self) -> None:
        """Ask the database for an answer."""
        with self.reading() as session:
            session.execute(text("SELECT 1"))

    def dispose(self) -> None:
        """Close the pool's connections."""
        if self._checkpoints is not None:
            self._checkpoints.wait()
        self.engine.dispose()


def head_revision() -> str:
    """Return the newest revision: migrations are numbered, and named by their number."""
    return max(path.name.split("_", 1)[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def current_revision(database: Database) -> str | None:
    """Return the revision that the database is at, or None when it holds no schema yet."""
    with database.reading() as session:
        if not inspect(session.connection()).has_table("alembic_version"):
            return None
        revision: str | None = session.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
        return revision


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the schema to a revision in one transaction; several processes may do so at the same time."""
    from alembic import command

    path = _sqlite_path(url)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    with _migrating(url) as config:
        command.upgrade(config, revision)


def downgrade(url: str, revision: str) -> None:
    """Take the schema back to an older revision ("base": to nothing)."""
    from alembic import command

    with _migrating(url) as config:
        command.downgrade(config, revision)


def check(url: str) -> list[str]:
    """Return what is wrong with the schema, in sentences: not at the newest revision, or unlike the models."""
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    path = _sqlite_path(url)
    if path is not None and not path.exists():
        return [f"there is no database file {path}: run `s2bench db upgrade`"]
    heads = ScriptDirectory.from_config(_config(url)).get_heads()
    if heads != [head_revision()]:
        return [f"migrations: got the heads {heads}, expected the single head {head_revision()}"]
    with _migrating(url) as config:
        connection: Connection = config.attributes["connection"]
        context = MigrationContext.configure(connection, opts=_comparison_options(config))
        current = context.get_current_revision()
        if current != heads[0]:
            return [f"the schema is at {current or 'nothing'}, expected {heads[0]}: run `s2bench db upgrade`"]
        return [
            f"the schema differs from the models: {difference}"
            for difference in compare_metadata(context, config.attributes["target_metadata"])
        ]


def new_revision(url: str, message: str) -> None:
    """Write a migration that takes the schema at `url` to the models; for developers, to be read and edited."""
    from alembic import command

    number = f"{int(head_revision()) + 1:04d}"
    with _migrating(url) as config:
        command.revision(config, message, autogenerate=True, rev_id=number)


def ours(item: Any, _name: str | None, kind: str, reflected: bool, compared: Any) -> bool:
    """Say whether a table takes part in comparisons: a found one that no model describes is the queue engine's.

    On SQLite the engine keeps its tables in the same file and name space.
    """
    return not (kind == "table" and reflected and compared is None)


def _sqlite_path(url: str) -> Path | None:
    parsed = make_url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def _comparison_options(config: Config) -> dict[str, Any]:
    return {"include_object": ours, "compare_type": True, "target_metadata": config.attributes["target_metadata"]}


def _config(url: str) -> Config:
    from alembic.config import Config

    from service.models import Base

    config = Config(str(MIGRATIONS / "alembic.ini"))
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["target_metadata"] = Base.metadata
    config.attributes["include_object"] = ours
    return config


@contextlib.contextmanager
def _migrating(url: str) -> Iterator[Config]:
    """Yield a configuration whose migrations run in one locked transaction."""
    engine = make_engine(url)
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            config = _config(url)
            config.attributes["connection"] = connection
            yield config
    finally:
        engine.dispose()
