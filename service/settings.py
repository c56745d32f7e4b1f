"""Settings of every process of the service, from environment variables that begin with `S2BENCH_`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

ROOT = Path(__file__).resolve().parent.parent

GITHUB_API = "https://api.github.com"

URL = r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$"
CheckName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._:/()-]{0,79}$")]
CaseGlob = Annotated[str, Field(pattern=r"^[!-,.-~][!-~]{0,249}$")]
Directory = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


class Settings(BaseSettings):
    """Where things live, what the server listens on, and the limits it keeps."""

    model_config = SettingsConfigDict(env_prefix="S2BENCH_", frozen=True, hide_input_in_errors=True)

    data_dir: Directory = Field(default=Path("~/.local/share/s2bench"), validate_default=True)
    database_url: str = Field(default="", description="Default: a SQLite file in data_dir")
    dashboards_dir: Directory = ROOT / "dashboards"

    host: str = "127.0.0.1"
    port: int = Field(default=8272, ge=0, le=65535)
    public_read: bool = Field(default=True, description="Whether reading needs no token")
    max_body_bytes: int = Field(default=2**20, ge=1024)
    write_rate_limit: str | None = Field(
        default=None,
        pattern=r"^[1-9][0-9]{0,8}/(second|minute|hour|day)$",
        description="Most writes per token or address, as in '120/minute'; default: no limit",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_json: bool = False
    log_requests: bool = False

    sandbox: Literal["required", "auto", "none"] = "required"
    share_compiler_cache: bool = Field(
        default=False, description="Let object code of one commit serve another: only where every commit is trusted"
    )
    build_timeout_s: float = Field(default=900.0, gt=0)
    process_timeout_s: float = Field(default=300.0, gt=0)
    profile_timeout_s: float = Field(default=180.0, gt=0, description="For the kernels of one commit, after the pairs")
    max_pairs: int = Field(default=48, ge=1, le=200, description="Pairs per measurement unless the job asks for fewer")

    calibrate_idle: bool = Field(
        default=True, description="Whether idle devices measure the newest measured commit against itself"
    )
    calibrate_after_s: float = Field(default=900.0, ge=0, description="Idle time of a device class before it does so")
    calibrate_every_s: float = Field(
        default=21600.0, ge=60, description="One such job per device class in this time, and not more"
    )
    calibrate_cases: CaseGlob = Field(default="*", description="Glob over the cases that it measures")

    public_url: str = Field(
        default="", pattern=URL, description="Where people reach this server; default: host and port"
    )
    github_api_url: str = Field(default=GITHUB_API, pattern=URL, description="Enterprise: https://HOST/api/v3")
    github_app_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._]{1,60}$")
    github_private_key_file: Path | None = Field(default=None, description="PEM file of the App; else a token is used")
    github_token: SecretStr | None = None
    private_repositories: bool = Field(
        default=False, description="Whether git needs these credentials to fetch; then workers need them too"
    )
    github_webhook_secret: SecretStr | None = Field(default=None, min_length=16)
    github_suites: dict[CheckName, CaseGlob] = Field(
        default={"s2bench": "*"}, min_length=1, description="Name of each check, and the glob over its cases"
    )
    github_poll_s: float = Field(default=300.0, gt=0, description="How often commits without a webhook are looked for")
    notify_targets: dict[CheckName, SecretStr] = Field(
        default={}, description="Names and apprise URLs of those who hear of alerts"
    )
    notify_private_addresses: bool = Field(default=False, description="Let targets be in private networks")

    @model_validator(mode="after")
    def _choose_database(self) -> Self:
        url = self.database_url or f"sqlite:///{self.data_dir / 's2bench.db'}"
        object.__setattr__(self, "database_url", normalized_url(url))
        return self

    @model_validator(mode="after")
    def _check_github(self) -> Self:
        if (self.github_app_id is None) != (self.github_private_key_file is None):
            raise ValueError("github_app_id and github_private_key_file: got one, expected both or neither")
        if self.github_app_id is not None and self.github_token is not None:
            raise ValueError("github_token: got one beside an App, expected either the App or a token")
        key_file = self.github_private_key_file
        if key_file is not None and not key_file.is_file():
            raise ValueError(f"github_private_key_file: got {key_file}, expected the App's PEM file")
        object.__setattr__(self, "public_url", (self.public_url or f"http://{self.host}:{self.port}").rstrip("/"))
        object.__setattr__(self, "github_api_url", self.github_api_url.rstrip("/"))
        return self

    @property
    def answers_github(self) -> bool:
        """Whether there are credentials to answer GitHub with."""
        return self.github_app_id is not None or self.github_token is not None

    @property
    def reaches_out(self) -> bool:
        """Whether there is anybody outside to hear or to tell."""
        return self.answers_github or self.github_webhook_secret is not None or bool(self.notify_targets)

    @property
    def github_url(self) -> str:
        """Where people read the repositories: beside the API on github.com and ghe.com, above it elsewhere."""
        return self.github_api_url.replace("://api.", "://", 1).removesuffix("/api/v3")

    @property
    def public_database_url(self) -> str:
        """The database URL without its password, for messages and logs."""
        return make_url(self.database_url).render_as_string(hide_password=True)


def normalized_url(url: str) -> str:
    """Return a SQLAlchemy URL with the driver this service uses; other databases are refused by name."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ValueError("database_url: got no URL, expected sqlite:///... or postgresql://...") from error
    backend = parsed.get_backend_name()
    if backend in {"postgresql", "postgres"}:
        return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    if backend == "sqlite" and parsed.database and parsed.database != ":memory:":
        return url
    raise ValueError(f"database_url: got {backend}, expected a SQLite file or PostgreSQL")
