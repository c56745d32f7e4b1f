"""A private repository: git gets in with the App's or a person's token, and the secret is seen by nothing else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from github_fake import PRIVATE_KEY, REPOSITORY, SECRET, FakeGitHub, app_settings
from github_fixtures import Loop
from serving import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from worker_fixtures import FORWARD_SELF, FakeRepository, RunningWorker, wait_until

from service.embedded import worker_environment
from service.github.access import fetch_access
from service.models import TERMINAL, ArmRun, Build, Job, JobEvent, Measurement, Repository
from service.settings import Settings
from service.worker.access import anonymous, fetch_environment, without_credentials
from service.worker.checkout import Mirror
from service.worker.errors import JobError

# Writes down its arguments and, apart, whether there are credentials in its environment, then is git.
RECORDER = """#!/bin/sh
printf '%s\\n' "$*" >> {folder}/arguments
[ -z "$GIT_CONFIG_VALUE_0" ] || printf '%s\\n' "$*" >> {folder}/credentials
exec {git} "$@"
"""


@pytest.fixture(params=["app", "token"])
def settings(request: pytest.FixtureRequest, database_url: str, tmp_path: Path, fake: FakeGitHub) -> Settings:
    values = app_settings(fake, tmp_path)
    if request.param == "token":
        values = {"github_api_url": fake.url, "github_token": fake.personal_token(), "github_webhook_secret": SECRET}
    return Settings(database_url=database_url, data_dir=tmp_path / "data", private_repositories=True, **values)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what every git of this process was started with."""
    folder = tmp_path / "recorded"
    folder.mkdir()
    git = subprocess.run(["sh", "-c", "command -v git"], capture_output=True, text=True, check=True).stdout.strip()
    (folder / "git").write_text(RECORDER.format(folder=folder, git=git))
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def made_private(loop: Loop, folder: Path) -> FakeRepository:
    """Return a work tree whose bare repository the fake serves, and register that."""
    work = FakeRepository(folder / "work")
    loop.fake.bare = folder / "private.git"
    work.git("init", "--quiet", "--bare", "--initial-branch=main", str(loop.fake.bare))
    work.git("remote", "add", "origin", str(loop.fake.bare))
    work.commit("root")
    work.commit("base")
    work.git("push", "--quiet", "origin", "main")
    with loop.context.database.transaction() as session:
        row = session.query(Repository).filter(Repository.github == REPOSITORY).one()
        row.url = f"{loop.fake.url}/{REPOSITORY}.git"
    return work


def secrets(fake: FakeGitHub) -> list[bytes]:
    """Every form in which a secret may be found."""
    from base64 import b64encode

    tokens = [fake.installation_token(), fake.personal_token(), fake.reading_token()]
    basic = [b64encode(f"x-access-token:{token}".encode()) for token in tokens]
    return [*(token.encode() for token in tokens), *basic, PRIVATE_KEY.splitlines()[1].encode()]


def test_it_is_measured_and_its_secret_stays_in_the_fetch(
    loop: Loop, tmp_path: Path, recorded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = made_private(loop, tmp_path)
    work.git("switch", "--quiet", "--create", "topic")
    slow = work.commit("slow", speed={FORWARD_SELF: 1.1})
    work.git("push", "--quiet", "origin", "topic")
    loop.fake.pull(7, slow)
    loop.send("pull_request", loop.fake.pull_event("opened", 7))
    loop.work()
    (job,) = loop.jobs()
    assert job.commit_sha == slow
    worker = tmp_path / "worker"
    access = fetch_access(loop.context.settings)
    with RunningWorker(loop.context.database, worker, access=access):
        wait_until(lambda: loop.jobs()[0].state in TERMINAL, 120, "the end of the job")
    loop.work()
    assert loop.jobs()[0].state == "done", loop.jobs()[0].error
    if loop.context.settings.github_app_id is not None:
        assert loop.fake.check("s2bench", slow)["conclusion"] == "failure"
    assert {status for _, status in loop.fake.git_requests} == {200}

    with_credentials = (recorded / "credentials").read_text().splitlines()
    assert with_credentials
    assert all(line.startswith("fetch ") for line in with_credentials)
    arguments = (recorded / "arguments").read_bytes()
    assert b"worktree add" in arguments
    stored = [repr([vars(row) for row in loop.rows(model)]) for model in (Job, Measurement, JobEvent, Build, ArmRun)]
    assert len(stored[4]) > 1000
    files = [path for folder in (worker, tmp_path / "data") for path in folder.rglob("*") if path.is_file()]
    assert any(path.name.endswith(".gitconfig") for path in files)
    for secret in secrets(loop.fake):
        assert secret not in arguments
        assert secret.decode() not in caplog.text + "".join(stored)
        assert not [path for path in files if secret in path.read_bytes()]


def test_without_credentials_it_fails_and_says_so(loop: Loop, tmp_path: Path) -> None:
    made_private(loop, tmp_path)
    mirror = Mirror(tmp_path / "other", f"{loop.fake.url}/{REPOSITORY}.git", anonymous)
    with pytest.raises(JobError, match="fetch failed") as caught:
        mirror.fetch()
    assert "terminal prompts disabled" in caught.value.log_tail


def test_a_token_that_is_refused_is_in_no_message(loop: Loop, tmp_path: Path, settings: Settings) -> None:
    made_private(loop, tmp_path)
    access = fetch_access(settings)
    Mirror(tmp_path / "other", f"{loop.fake.url}/{REPOSITORY}.git", access).fetch()
    told = access(f"{loop.fake.url}/{REPOSITORY}.git")
    assert told is not None
    loop.fake._reading = loop.fake._personal = "another"
    with pytest.raises(JobError) as caught:
        Mirror(tmp_path / "third", f"{loop.fake.url}/{REPOSITORY}.git", access).fetch()
    assert told.partition(":")[2] not in json.dumps(caught.value.to_dict())


def test_the_token_is_for_this_github_alone(settings: Settings, fake: FakeGitHub) -> None:
    access = fetch_access(settings)
    assert access(f"{fake.url}/{REPOSITORY}") is not None
    assert access(f"{fake.url}/{REPOSITORY}.git") is not None
    port = fake.url.rpartition(":")[2]
    for url in (
        f"https://evil.example/{fake.url}/{REPOSITORY}",
        f"http://127.0.0.1:{port}0/{REPOSITORY}",
        f"http://127.0.0.1:{port}@evil.example/{REPOSITORY}",
        f"{fake.url}/octo",
        f"{fake.url}/a/b/c",
        "/srv/git/kernels.git",
        "git@github.com:octo/kernels.git",
    ):
        assert access(url) is None, url
    if settings.github_app_id is not None:
        assert access(f"{fake.url}/somebody/public") is None  # the App is not installed there


def test_a_token_is_bought_once(settings: Settings, fake: FakeGitHub) -> None:
    access = fetch_access(settings)
    for _ in range(3):
        access(f"{fake.url}/{REPOSITORY}")
    assert fake.count("POST", "/access_tokens") == (1 if settings.github_app_id is not None else 0)


def test_without_private_repositories_nobody_buys_one(settings: Settings, fake: FakeGitHub) -> None:
    assert fetch_access(settings.model_copy(update={"private_repositories": False})) is anonymous
    assert fetch_access(Settings(data_dir=settings.data_dir, private_repositories=True)) is anonymous


def test_a_redirect_to_another_host_gets_no_credentials(loop: Loop, tmp_path: Path, settings: Settings) -> None:
    seen: list[str | None] = []

    async def elsewhere(request: Request) -> Response:
        seen.append(request.headers.get("authorization"))
        return Response(status_code=404)

    async def moved(request: Request) -> Response:
        return RedirectResponse(f"{other}{request.url.path}?{request.url.query}")

    with (
        serving(Starlette(routes=[Route("/{rest:path}", elsewhere)])) as other,
        serving(Starlette(routes=[Route("/{rest:path}", moved)])) as first,
    ):
        url = f"{first}/{REPOSITORY}.git".replace("127.0.0.1", "localhost")
        with pytest.raises(JobError):
            Mirror(tmp_path / "other", url, lambda _: "x-access-token:secret").fetch()
    assert seen == [None]


# ---- credentials in a URL ----


def test_credentials_of_a_url_move_into_the_environment(loop: Loop, tmp_path: Path, recorded: Path) -> None:
    made_private(loop, tmp_path)
    token = loop.fake.personal_token()
    url = f"{loop.fake.url}/{REPOSITORY}.git".replace("://", f"://x-access-token:{token}@")
    mirror = Mirror(tmp_path / "other", url)
    mirror.fetch()
    with pytest.raises(JobError) as caught:
        mirror.resolve("nothing")
    assert token not in str(caught.value)
    assert token not in (recorded / "arguments").read_text()


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://u:p@host:8443/a/b.git", "https://host:8443/a/b.git"),
        ("https://host/a@b.git", "https://host/a@b.git"),
        ("ssh://git@host/a.git", "ssh://git@host/a.git"),
        ("git@host:a.git", "git@host:a.git"),
        ("/srv/a@b", "/srv/a@b"),
        ("file:///srv/a", "file:///srv/a"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, clean: str) -> None:
    assert without_credentials(url) == clean


def test_quoted_credentials_are_meant_literally() -> None:
    from base64 import b64decode

    value = fetch_environment("https://a%40b:p%3Aq@host/x", anonymous)["GIT_CONFIG_VALUE_0"]
    assert b64decode(value.rpartition(" ")[2]) == b"a@b:p:q"
    assert fetch_environment("https://host/x", anonymous) == {}
    assert fetch_environment("/srv/x", lambda _: "never") == {}


def test_a_worker_of_up_gets_what_it_fetches_with_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "WEBHOOK_SECRET", "APP_ID", "PRIVATE_KEY_FILE", "API_URL"):
        monkeypatch.setenv(f"S2BENCH_GITHUB_{name}", name)
    monkeypatch.setenv("S2BENCH_NOTIFY_TARGETS", "NOTIFY")
    found = set(worker_environment(may_fetch=True).values())
    assert {"TOKEN", "APP_ID", "PRIVATE_KEY_FILE", "API_URL"} <= found
    assert not {"WEBHOOK_SECRET", "NOTIFY"} & found
    assert not {"TOKEN", "APP_ID"} & set(worker_environment().values())
