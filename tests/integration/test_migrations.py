"""Migrations on SQLite and on PostgreSQL: up, down, drift, at the same time, and beside the queue engine's tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, text

from service import db, engine
from service.models import Base


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without any table."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new.db'}"
    url: str = request.getfixturevalue("make_postgres_database")()
    return url


@pytest.fixture
def empty_engine(empty_url: str) -> Iterator[Engine]:
    opened = db.make_engine(empty_url)
    yield opened
    opened.dispose()


def own_tables(opened: Engine) -> set[str]:
    return set(inspect(opened).get_table_names()) & set(Base.metadata.tables)


def test_upgrade_makes_every_table_and_matches_the_models(empty_url: str, empty_engine: Engine) -> None:
    db.upgrade(empty_url)
    assert own_tables(empty_engine) == set(Base.metadata.tables)
    assert db.check(empty_url) == []
    database = db.Database(empty_url)
    assert db.current_revision(database) == db.head_revision()
    database.dispose()


def test_upgrade_again_changes_nothing(empty_url: str) -> None:
    db.upgrade(empty_url)
    db.upgrade(empty_url)
    assert db.check(empty_url) == []


def test_downgrade_removes_every_table(empty_url: str, empty_engine: Engine) -> None:
    db.upgrade(empty_url)
    db.downgrade(empty_url, "base")
    assert own_tables(empty_engine) == set()
    db.upgrade(empty_url)
    assert db.check(empty_url) == []


def test_check_of_an_empty_database_says_what_to_do(empty_url: str) -> None:
    problems = db.check(empty_url)
    assert len(problems) == 1
    assert "s2bench db upgrade" in problems[0]


def test_check_names_drift(empty_url: str, empty_engine: Engine) -> None:
    db.upgrade(empty_url)
    with empty_engine.begin() as connection:
        connection.execute(text("ALTER TABLE worker ADD COLUMN mood VARCHAR(10)"))
        connection.execute(text("DROP INDEX ix_job_state"))
    problems = " ".join(db.check(empty_url))
    assert "mood" in problems
    assert "ix_job_state" in problems


def test_tables_of_the_queue_engine_are_not_seen_and_not_dropped(empty_url: str, empty_engine: Engine) -> None:
    db.upgrade(empty_url)
    engine.install(empty_url)
    schema = "dbos" if empty_engine.dialect.name == "postgresql" else None
    assert "workflow_status" in inspect(empty_engine).get_table_names(schema)
    assert db.check(empty_url) == []
    db.downgrade(empty_url, "base")
    db.upgrade(empty_url)
    assert "workflow_status" in inspect(empty_engine).get_table_names(schema)


def test_the_queue_engine_may_come_first(empty_url: str) -> None:
    db.upgrade(empty_url)
    db.downgrade(empty_url, "base")
    engine.install(empty_url)
    db.upgrade(empty_url)
    assert db.check(empty_url) == []


def test_several_processes_may_upgrade_at_once(empty_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(db.upgrade, empty_url) for _ in range(4)]:
            done.result()
    assert db.check(empty_url) == []


def test_a_failing_migration_leaves_nothing_behind(empty_url: str, empty_engine: Engine) -> None:
    with empty_engine.begin() as connection:
        connection.execute(text("CREATE TABLE verdict (id INTEGER)"))  # the last one that the migration makes
    with pytest.raises(Exception, match="already exists"):
        db.upgrade(empty_url)
    assert own_tables(empty_engine) == {"verdict"}
    assert not inspect(empty_engine).has_table("alembic_version")


def test_a_new_revision_is_numbered_and_imports_no_service_code(
    empty_url: str, empty_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(db.MIGRATIONS, tmp_path / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(db, "MIGRATIONS", tmp_path / "migrations")
    db.upgrade(empty_url)
    with empty_engine.begin() as connection:
        connection.execute(text("DROP TABLE telemetry_block"))
    newer = int(db.head_revision()) + 1
    db.new_revision(empty_url, "bring telemetry back")
    written = (tmp_path / "migrations" / "versions" / f"{newer:04d}_bring_telemetry_back.py").read_text()
    assert f'down_revision = "{newer - 1:04d}"' in written.replace("'", '"')
    assert "import service" not in written
    assert "from service" not in written
    db.upgrade(empty_url)
    assert db.check(empty_url) == []


NOW = "2026-11-30 12:00:00+00:00"
ID = "00000000000070008000000000000001"


def test_data_of_the_schema_before_stays_through_the_newest_step_and_back(empty_url: str, empty_engine: Engine) -> None:
    db.upgrade(empty_url)
    db.downgrade(empty_url, "0001")
    assert not inspect(empty_engine).has_table("kernel_profile")
    with empty_engine.begin() as connection:
        row = text(
            "INSERT INTO worker (id, created_at, executor_id, host, pid, version, sandbox, heartbeat_at)"
            " VALUES (:id, :now, 'w', 'host', 1, '0.1', 'none', :now)"
        )
        connection.execute(row, {"id": ID, "now": NOW})
    db.upgrade(empty_url)
    assert db.check(empty_url) == []
    with empty_engine.begin() as connection:
        assert connection.execute(text("SELECT host FROM worker")).scalars().all() == ["host"]
        assert connection.execute(text("SELECT count(*) FROM kernel_profile")).scalar_one() == 0
    db.downgrade(empty_url, "0001")
    with empty_engine.begin() as connection:
        assert connection.execute(text("SELECT host FROM worker")).scalars().all() == ["host"]


def test_versions_import_no_service_code() -> None:
    for path in [*(db.MIGRATIONS / "versions").glob("*.py"), db.MIGRATIONS / "env.py"]:
        source = path.read_text()
        assert "import service" not in source, path
        assert "from service" not in source, path


def test_upgrade_makes_the_folder_of_a_sqlite_file_and_check_does_not(tmp_path: Path) -> None:
    path = tmp_path / "data" / "s2bench.db"
    assert "s2bench db upgrade" in db.check(f"sqlite:///{path}")[0]
    assert not path.parent.exists()
    db.upgrade(f"sqlite:///{path}")
    assert path.exists()


def test_data_of_the_release_before_lives_through_up_and_down(empty_url: str, empty_engine: Engine) -> None:
    """Rows that refer to the changed table, written as the release before writes them; then written again by it."""
    old_insert = text(
        "INSERT INTO repository (id, created_at, name, url, default_branch) "
        "VALUES (:id, '2026-01-01 00:00:00+00:00', :name, 'https://x/y', 'main')"
    )
    commit = text(
        'INSERT INTO "commit" (id, created_at, repository_id, sha, orphaned) '
        "VALUES (:id, '2026-01-01 00:00:00+00:00', :repository, :sha, :orphaned)"
    )
    db.upgrade(empty_url, "0002")
    first, second = "0" * 31 + "1", "0" * 31 + "2"
    with empty_engine.begin() as connection:
        connection.execute(old_insert, {"id": first, "name": "old"})
        connection.execute(commit, {"id": first, "repository": first, "sha": "a" * 40, "orphaned": False})
    db.upgrade(empty_url)
    with empty_engine.begin() as connection:
        connection.execute(old_insert, {"id": second, "name": "still old"})
        connection.execute(text("UPDATE repository SET github = 'octo/kernels' WHERE name = 'old'"))
    assert db.check(empty_url) == []
    db.downgrade(empty_url, "0002")
    with empty_engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM repository ORDER BY name")).scalars().all() == [
            "old",
            "still old",
        ]
        assert connection.execute(text('SELECT sha FROM "commit"')).scalars().all() == ["a" * 40]
    db.upgrade(empty_url)
    assert db.check(empty_url) == []


def test_points_of_the_release_before_live_through_up_and_down(empty_url: str, empty_engine: Engine) -> None:
    """A point with all that it refers to, and one that the release before writes on the new schema."""
    now = "2026-01-01 00:00:00+00:00"
    one, two = "0" * 31 + "1", "0" * 31 + "2"
    rows = {
        "repository": {"name": "old", "url": "https://x/y", "default_branch": "main"},
        '"commit"': {"repository_id": one, "sha": "a" * 40, "orphaned": False},
        "job": {"repository_id": one, "requested_commit": "a", "requested_baseline": "auto", "devices": "[]"}
        | {"cases": "*", "priority": 1, "policy": "{}", "state": "done", "cancel_requested": False, "body_sha256": "0"},
        "measurement": {"job_id": one, "device_class": "cpu", "state": "done", "attempt": 1},
        '"case"': {"name": "c", "version": "1", "kernel_group": "g", "definition": "{}"},
        "series": {"repository_id": one, "case_id": one, "metric": "time", "unit": "ms", "device_class": "cpu"}
        | {"backend": "cpu"},
    }
    point = {"series_id": one, "commit_id": one, "measurement_id": one, "value": 2.0, "low": 1.9, "high": 2.1}
    point |= {"processes": 12, "status": "ok"}

    def insert(table: str, row: dict[str, object], number: str) -> None:
        values = {"id": number, "created_at": now} | row
        names = ", ".join(values)
        statement = f"INSERT INTO {table} ({names}) VALUES ({', '.join(':' + name for name in values)})"
        connection.execute(text(statement), values)

    db.upgrade(empty_url, "0003")
    with empty_engine.begin() as connection:
        for table, row in rows.items():
            insert(table, row, one)
        insert("point", point | {"arm": "A"}, one)
    db.upgrade(empty_url)
    with empty_engine.begin() as connection:
        insert("point", point | {"arm": "B"}, two)
        found = connection.execute(text("SELECT arm, value, history, clock FROM point ORDER BY arm")).all()
    assert [tuple(row) for row in found] == [("A", 2.0, None, None), ("B", 2.0, None, None)]
    assert db.check(empty_url) == []
    db.downgrade(empty_url, "0003")
    with empty_engine.connect() as connection:
        assert connection.execute(text("SELECT arm FROM point ORDER BY arm")).scalars().all() == ["A", "B"]
    assert not inspect(empty_engine).has_table("change_point")
    db.upgrade(empty_url)
    assert db.check(empty_url) == []


def test_jobs_of_the_release_before_are_comparisons(empty_url: str, empty_engine: Engine) -> None:
    """What the release before writes on the newest schema, and what it had written, compares two commits."""
    repository = text(
        "INSERT INTO repository (id, created_at, name, url, default_branch) VALUES (:id, :now, 'r', 'u', 'main')"
    )
    job = text(
        "INSERT INTO job (id, created_at, repository_id, requested_commit, requested_baseline, devices, cases,"
        " priority, policy, state, cancel_requested, body_sha256)"
        " VALUES (:id, :now, :repository, 'main', 'auto', '[]', '*', 1, '{}', 'done', :no, :hash)"
    )
    values = {"now": NOW, "repository": ID, "no": False, "hash": "0" * 64}
    db.upgrade(empty_url, "0003")
    with empty_engine.begin() as connection:
        connection.execute(repository, {"id": ID, "now": NOW})
        connection.execute(job, values | {"id": ID})
    db.upgrade(empty_url)
    with empty_engine.begin() as connection:
        connection.execute(job, values | {"id": ID[:-1] + "2"})
        assert connection.execute(text("SELECT DISTINCT kind FROM job")).scalars().all() == ["compare"]
        assert connection.execute(text("SELECT count(*) FROM attribution")).scalar_one() == 0
    db.downgrade(empty_url, "0003")
    with empty_engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM job")).scalar_one() == 2
