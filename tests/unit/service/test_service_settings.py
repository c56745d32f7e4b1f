"""Settings from arguments and from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.settings import Settings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("S2BENCH_DATA_DIR", "S2BENCH_DATABASE_URL", "S2BENCH_MAX_PAIRS"):
        monkeypatch.delenv(name, raising=False)


def test_the_database_lies_in_the_data_directory(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.database_url == f"sqlite:///{tmp_path}/s2bench.db"
    assert Settings().data_dir == Path.home() / ".local/share/s2bench"


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2BENCH_DATA_DIR", "relative")
    monkeypatch.setenv("S2BENCH_MAX_PAIRS", "12")
    settings = Settings()
    assert settings.data_dir == Path.cwd() / "relative"
    assert settings.max_pairs == 12
    assert Settings(max_pairs=20).max_pairs == 20


def test_postgres_urls_get_their_driver_and_hide_their_password() -> None:
    settings = Settings(database_url="postgresql://ada:secret@db/s2bench")
    assert settings.database_url == "postgresql+psycopg://ada:secret@db/s2bench"
    assert settings.public_database_url == "postgresql+psycopg://ada:***@db/s2bench"


@pytest.mark.parametrize(
    "values",
    [
        {"database_url": "mysql://x/y"},
        {"database_url": "sqlite://"},
        {"database_url": "sqlite:///:memory:"},
        {"database_url": "nonsense"},
        {"port": 70000},
        {"max_pairs": 0},
        {"sandbox": "maybe"},
        {"write_rate_limit": "often"},
        {"write_rate_limit": "0/second"},
        {"unknown": 1},
    ],
)
def test_settings_that_cannot_be(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(**values)
