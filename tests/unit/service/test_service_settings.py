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
        {"calibrate_every_s": 59},
        {"calibrate_after_s": -1},
        {"calibrate_cases": "--all"},
        {"sandbox": "maybe"},
        {"write_rate_limit": "often"},
        {"write_rate_limit": "0/second"},
        {"unknown": 1},
    ],
)
def test_settings_that_cannot_be(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(**values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"github_app_id": "1"}, "got one, expected both or neither"),
        ({"github_private_key_file": "/k.pem"}, "got one, expected both or neither"),
        (
            {"github_app_id": "1", "github_private_key_file": "/k.pem", "github_token": "secret-token"},
            "either the App or a token",
        ),
        ({"github_app_id": "1", "github_private_key_file": "/no/k.pem"}, "expected the App's PEM file"),
        ({"github_webhook_secret": "short-secret"}, "at least 16"),
        ({"github_api_url": "ftp://secret-token@host"}, "pattern"),
        ({"github_api_url": "https://secret-token@host/api/v3"}, "pattern"),
        ({"github_suites": {}}, "at least 1"),
        ({"github_suites": {"<b>": "*"}}, "pattern"),
        ({"github_suites": {"a": "--exec"}}, "pattern"),
        ({"notify_targets": {"|": "json://secret-token"}}, "pattern"),
    ],
)
def test_bad_settings_of_the_outside_world_are_refused_without_secrets(tmp_path: Path, values: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words) as error:
        Settings(data_dir=tmp_path, **values)
    assert "secret-token" not in str(error.value)


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    secrets: dict[str, Any] = {
        "github_token": "tttt",
        "github_webhook_secret": "s" * 20,
        "notify_targets": {"a": "json://nnnn"},
    }
    settings = Settings(data_dir=tmp_path, **secrets)
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert not [secret for secret in ("tttt", "ssss", "nnnn") if secret in shown]


def test_links(tmp_path: Path) -> None:
    assert Settings(data_dir=tmp_path).github_url == "https://github.com"
    resident = Settings(data_dir=tmp_path, github_api_url="https://api.octo.ghe.com")
    assert resident.github_url == "https://octo.ghe.com"
    enterprise = Settings(
        data_dir=tmp_path, github_api_url="https://git.example/api/v3/", public_url="https://b.example/"
    )
    assert (enterprise.github_url, enterprise.public_url) == ("https://git.example", "https://b.example")
    assert Settings(data_dir=tmp_path, port=80).public_url == "http://127.0.0.1:80"
