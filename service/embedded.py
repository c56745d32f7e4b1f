"""The embedded mode: API and worker of one data directory as one process group (`s2bench up`)."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import httpx2

if TYPE_CHECKING:
    from service.settings import Settings

PR_SET_PDEATHSIG = 1
RESTART_PAUSE_S = 2.0
STOP_TIMEOUT_S = 15.0


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies, however it dies; for use between fork and exec."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    """Return a TCP port that is free on the loopback address right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command(*arguments: str) -> list[str]:
    """Return the command line of another s2bench command under this interpreter."""
    return [sys.executable, "-m", "service.cli", *arguments]


class ServerError(Exception):
    """A server that was started as a child does not run, in words."""


_FETCHES_WITH = frozenset(f"S2BENCH_GITHUB_{name}" for name in ("API_URL", "APP_ID", "PRIVATE_KEY_FILE", "TOKEN"))


class WorkerProcess:
    """A worker as a child process, started again when it ends unasked."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command("worker", *arguments)
        self._environment = environment
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="worker-keeper", daemon=True)

    def start(self) -> None:
        """Start the worker and keep it alive until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the worker to end, wait for it, and kill it when it does not."""
        self._stopping.set()
        process = self._process
        if process is not None and process.poll() is None:
            end(process)
        self._thread.join(STOP_TIMEOUT_S)

    def _keep(self) -> None:
        # PDEATHSIG follows the thread that forked: this thread lives as long as the process does.
        while not self._stopping.is_set():
            self._process = subprocess.Popen(self._command, env=self._environment, preexec_fn=die_with_parent)
            code = self._process.wait()
            if self._stopping.wait(RESTART_PAUSE_S):
                return
            print(f"s2bench: the worker ended with {code}; starting it again", file=sys.stderr, flush=True)


def worker_environment(*, may_fetch: bool = False) -> dict[str, str]:
    """Return this process's environment without credentials of the outside world.

    With `may_fetch` those with which GitHub is asked stay, because a repository is private.
    """
    secret = ("S2BENCH_GITHUB_", "S2BENCH_NOTIFY_")
    kept = _FETCHES_WITH if may_fetch else ()
    return {
        name: value for name, value in os.environ.items() if name.upper() in kept or not name.upper().startswith(secret)
    }


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process and, after a grace period, kill it."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def prepare_database(settings: Settings) -> None:
    """Bring the schema to its newest revision and make the queue engine's own tables."""
    from service import db, engine

    db.upgrade(settings.database_url)
    engine.install(settings.database_url)


def register_work_tree(settings: Settings, root: Path) -> None:
    """Register a work tree under its folder's name, so that its commits can be measured."""
    from service.db import Database
    from service.repositories.service import register

    database = Database(settings.database_url)
    try:
        with database.transaction() as session:
            register(session, root.name, str(root), default_branch(root))
    finally:
        database.dispose()


def serve_api(settings: Settings) -> None:
    """Serve the HTTP API and the pages until SIGTERM or Ctrl-C."""
    from service import main

    main.serve(settings)


def serve(settings: Settings, repository: Path, *, sandbox: bool) -> int:
    """Run API and worker on one data directory until SIGTERM or Ctrl-C; return the exit code.

    The API runs in this process and the worker in a child: two processes instead of three, because each costs about
    100 MB of resident memory. Schema work happens in a process of its own for the same reason.
    """
    root = repository_root(repository)
    preparation = multiprocessing.get_context("spawn").Process(target=_prepare, args=(settings, root))
    preparation.start()
    preparation.join()
    if preparation.exitcode != 0:
        print(f"s2bench: the database {settings.public_database_url} could not be prepared", file=sys.stderr)
        return 3
    # uvicorn hands a signal on when it has shut down; without a handler of ours it would end this process at once.
    signal.signal(signal.SIGTERM, _interrupt)
    environment = worker_environment(may_fetch=settings.private_repositories)
    worker = WorkerProcess([] if sandbox else ["--no-sandbox"], environment)
    worker.start()
    print(
        f"s2bench: http://{settings.host}:{settings.port}  (data in {settings.data_dir})", file=sys.stderr, flush=True
    )
    from service.delivery import delivering_beside

    try:
        with delivering_beside(settings) if settings.reaches_out else contextlib.nullcontext():
            serve_api(settings)
    except KeyboardInterrupt:
        pass
    finally:
        worker.stop()
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _prepare(settings: Settings, root: Path | None) -> None:
    prepare_database(settings)
    if root is not None:
        register_work_tree(settings, root)


@contextlib.contextmanager
def running_server(arguments: Sequence[str], port: int, log_path: Path) -> Iterator[str]:
    """Run `s2bench up` on a port as a child process and yield its URL once it answers.

    Raises
    ------
    ServerError
        When the server ends or does not answer within 60 s; names the log.
    """
    url = f"http://127.0.0.1:{port}"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command("up", "--port", str(port), *arguments), stdout=log, stderr=log, preexec_fn=die_with_parent
        )
    try:
        wait_until_healthy(url, process, log_path)
        yield url
    finally:
        end(process)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], log_path: Path, timeout_s: float = 60.0) -> None:
    """Return when the server answers /healthz."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"the server ended with {process.returncode}; its log is {log_path}")
        with contextlib.suppress(httpx2.HTTPError):
            if httpx2.get(f"{url}/healthz", timeout=5).is_success:
                return
        time.sleep(0.2)
    raise ServerError(f"the server does not answer at {url} after {timeout_s:g} s; its log is {log_path}")


def repository_root(path: Path) -> Path | None:
    """Return the top of the git work tree that holds `path`, or None."""
    top = _git(path, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def default_branch(root: Path) -> str:
    """Return the branch that the remote calls its default, else main or master, else the one checked out."""
    remote = _git(root, "symbolic-ref", "--short", "--quiet", "refs/remotes/origin/HEAD").removeprefix("origin/")
    current = _git(root, "symbolic-ref", "--short", "--quiet", "HEAD")
    for name in (remote, "main", "master", current):
        if name and _git(root, "rev-parse", "--verify", "--quiet", f"refs/heads/{name}"):
            return name
    return "main"


def _git(path: Path, *arguments: str) -> str:
    """Run git in a folder and return what it printed, nothing when it failed."""
    result = subprocess.run(["git", "-C", os.fspath(path), *arguments], capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""
