"""A server started as a user starts it: `s2bench up` on a repository of fake commits."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from worker_fixtures import FakeRepository

from service.embedded import free_port, running_server


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return standard output as JSON."""
        return json.loads(self.out)


class CommandLine:
    """Runs `s2bench` commands against one server and data directory."""

    def __init__(self, repository: FakeRepository, data_dir: Path, server: str | None = None) -> None:
        self.repository = repository
        self.data_dir = data_dir
        self.environment = os.environ | {"S2BENCH_DATA_DIR": str(data_dir), "COLUMNS": "200"}
        if server is not None:
            self.environment["S2BENCH_SERVER"] = server

    def __call__(self, *arguments: str, timeout_s: float = 120) -> Outcome:
        result = subprocess.run(
            [sys.executable, "-m", "service.cli", *arguments],
            cwd=self.repository.path,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Outcome(result.returncode, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def fake_repository(tmp_path_factory: pytest.TempPathFactory) -> FakeRepository:
    """Commits of the fake package on `main`: a base, the same again, one case slower, and one that does not build."""
    repository = FakeRepository(tmp_path_factory.mktemp("work") / "kernels")
    for name, behavior in {
        "base": {},
        "same": {},
        "slower": {"speed": {"cpu/forward/self": 1.3}},
        "broken": {"build": "fail"},
    }.items():
        repository.commit(name, **behavior)
        repository.git("tag", name)
    return repository


@pytest.fixture(scope="module")
def command_line(fake_repository: FakeRepository, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Commands against a running `s2bench up`."""
    folder = tmp_path_factory.mktemp("data")
    arguments = ["--data-dir", str(folder), "--repository", str(fake_repository.path)]
    with running_server(arguments, free_port(), folder / "server.log") as url:
        yield CommandLine(fake_repository, folder, url)
