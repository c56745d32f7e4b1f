"""What commands share: options, settings, JSON on standard output, ending with one line."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from service.report import Exit

if TYPE_CHECKING:
    from rich.console import Console

    from service.client import Client
    from service.settings import Settings

DataDir = Annotated[Path | None, typer.Option(help="Where the database, mirrors and builds live.")]
Server = Annotated[str, typer.Option(envvar="S2BENCH_SERVER", help="Base URL of the server.")]
TokenOption = Annotated[str | None, typer.Option("--token", envvar="S2BENCH_TOKEN", help="Access token for writes.")]
PIPE_WIDTH = 140
DEFAULT_SERVER = "http://127.0.0.1:8272"
LocalDevice = Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of this machine.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def settings_for(data_dir: Path | None, **values: Any) -> Settings:
    """Return the settings of this process; the data directory also reaches child processes by the environment."""
    from service.settings import Settings

    if data_dir is not None:
        os.environ["S2BENCH_DATA_DIR"] = str(data_dir.resolve())
    return Settings(**{name: value for name, value in values.items() if value is not None})


def print_json(value: object) -> None:
    """Print a value as JSON on standard output."""
    print(json.dumps(value, indent=2, default=str))


def stop(message: str, code: Exit) -> NoReturn:
    """Print one line on standard error and exit."""
    print(f"s2bench: {message}", file=sys.stderr)
    raise typer.Exit(code)


def console() -> Console:
    """Return the console for people: standard error, so that standard output carries results alone."""
    from rich.console import Console

    return Console(stderr=True, width=None if sys.stderr.isatty() else PIPE_WIDTH)


@contextlib.contextmanager
def connection(server: str, token: str | None) -> Iterator[Client]:
    """Yield a client whose errors end the command with one line and a code."""
    from service.client import Client, ClientError

    try:
        with Client(server, token) as client:
            yield client
    except ClientError as error:
        stop(str(error), Exit.USAGE if error.usage else Exit.INFRASTRUCTURE)


def local_sha(root: Path, ref: str) -> str:
    """Resolve HEAD and other names as the user's work tree knows them; what git does not know is left to the server."""
    result = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout.strip() or ref
