"""Runs code of commits in children that can reach nothing but what is named here.

With bubblewrap a child has no network, no environment but the one given, no capability, its own process and user
namespaces, and sees: the system's /usr, the interpreter, the checkout (read-only), a build cache, one output folder,
an empty /tmp, and the device nodes of its GPU. As root the child is user 65534, and `_stage` makes folders below
private ones (a virtual environment under /root) reachable for it in a mount namespace of its own.

Without bubblewrap (mode `none`) a child is an ordinary process with an empty environment. In both modes a guardian
process ends all descendants with the worker, at a time limit, and when asked to stop.
"""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import IO

from service.worker.errors import JobError, Kind

NOBODY = 65534
OUTPUT_TAIL_BYTES = 64 * 1024
_POLL_S = 0.2
_TERMINATE_GRACE_S = 5.0
_STAGES = ("/mnt", "/srv", "/media", "/opt")
_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
_CPU_INFORMATION = "/sys/devices/system/cpu"


class Mode(StrEnum):
    """How children are confined; recorded with every result."""

    BUBBLEWRAP = "bubblewrap"
    NONE = "none"


@dataclass(frozen=True)
class Sandbox:
    """The mode in use and, for `none`, why."""

    mode: Mode
    reason: str = ""


@dataclass(frozen=True)
class Places:
    """Where a child finds its folders: fixed names with bubblewrap, the host's own without."""

    checkout: Path
    cache: Path
    output: Path


@dataclass(frozen=True)
class Child:
    """One child to run: `command` builds its argument list from the places it will see.

    `cache` and `output` must exist and be empty or the child's own; the cache is writable only for a build.
    """

    command: Callable[[Places], list[str]]
    checkout: Path
    cache: Path
    output: Path
    timeout_s: float
    cache_writable: bool = False
    compiler_cache: Path | None = None
    device_nodes: tuple[Path, ...] = ()
    cpus: tuple[int, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    file_bytes: int = 256 * 2**20
    stdout_bytes: int = OUTPUT_TAIL_BYTES


@dataclass(frozen=True)
class Outcome:
    """How a child ended: `status` is its exit status (128 + n after signal n); at most one of the flags is set."""

    status: int
    timed_out: bool
    stopped: bool
    stdout: str
    stderr: str
    wall_s: float

    @property
    def log(self) -> str:
        """Return both streams' last part."""
        return "\n".join(part for part in (self.stdout.strip(), self.stderr.strip()) if part)


def choose_sandbox(setting: str, *, fall_back: bool) -> Sandbox:
    """Return how to confine children under `setting`: auto, required or none.

    `auto` falls back to plain children only with `fall_back`, which is for people running their own commits.
    """
    if setting == "none":
        return Sandbox(Mode.NONE, "plain children were asked for")
    if setting not in ("auto", "required"):
        raise ValueError(f"sandbox: expected auto, required or none, got {setting!r}")
    reason = why_unusable()
    if reason is None:
        return Sandbox(Mode.BUBBLEWRAP)
    if setting == "auto" and fall_back:
        return Sandbox(Mode.NONE, reason)
    raise JobError("sandbox_missing", f"children cannot be confined: {reason}", stage="prepare")


@cache
def why_unusable() -> str | None:
    """Start the interpreter in an empty sandbox; return None when that works, else the reason in words."""
    for program in ("bwrap", *(("setpriv", "unshare", "mount") if os.geteuid() == 0 else ())):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    with tempfile.TemporaryDirectory(prefix="s2bench-probe-") as folder:
        base = Path(folder)
        places = [base / name for name in ("checkout", "cache", "output")]
        for place in places:
            place.mkdir()
        child = Child(
            command=lambda _: [sys.executable, "-I", "-c", "import json"],
            checkout=places[0],
            cache=places[1],
            output=places[2],
            timeout_s=20.0,
        )
        outcome = run_child(child, Sandbox(Mode.BUBBLEWRAP))
    if outcome.status == 0:
        return None
    lines = outcome.log.splitlines() or [f"bwrap ended with status {outcome.status}"]
    return f"bwrap does not work here: {lines[-1]}"


def make_writable(folder: Path, sandbox: Sandbox) -> None:
    """Give a folder to the user that children run as."""
    if sandbox.mode is Mode.BUBBLEWRAP and os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)


def run_child(child: Child, sandbox: Sandbox, stop: Callable[[], bool] = lambda: False) -> Outcome:
    """Run a child to its end, its time limit, or until `stop` says so, and return how it ended."""
    confined = sandbox.mode is Mode.BUBBLEWRAP
    places = _places(child, confined=confined)
    environment = _environment(child, places, confined=confined)
    command = child.command(places)
    if confined:
        command = _bubblewrap(child, environment, command)
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": child.file_bytes}
    settings = {"parent": os.getpid(), "cpus": list(child.cpus) if child.cpus else None, "limits": limits}
    guardian = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py")), json.dumps(settings)]
    started = time.monotonic()
    with subprocess.Popen(
        [*guardian, *command],
        env={} if confined else environment,
        cwd="/" if confined else child.output,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        umask=0o022,
    ) as process:
        limits_bytes = (child.stdout_bytes, OUTPUT_TAIL_BYTES)
        timed_out, stopped, stdout, stderr = _watch(process, limits_bytes, started + child.timeout_s, stop)
    return Outcome(process.returncode, timed_out, stopped, stdout, stderr, time.monotonic() - started)


def package_path(child: Child, sandbox: Sandbox) -> str:
    """Return where the s2attn that a child imports has to lie, as the child sees it."""
    confined = sandbox.mode is Mode.BUBBLEWRAP
    checkout = _places(child, confined=confined).checkout
    return str((checkout if confined else checkout.resolve()) / "s2attn")


def _places(child: Child, *, confined: bool) -> Places:
    if confined:
        return Places(Path("/checkout"), Path("/cache"), Path("/output"))
    return Places(child.checkout, child.cache, child.output)


def _watch(
    process: subprocess.Popen[bytes], kept_bytes: tuple[int, int], deadline: float, stop: Callable[[], bool]
) -> tuple[bool, bool, str, str]:
    """Read both streams, keeping the end of each, until the process is over or has to be."""
    assert process.stdout is not None
    assert process.stderr is not None
    tails = [_Tail(process.stdout, kept_bytes[0]), _Tail(process.stderr, kept_bytes[1])]
    timed_out = stopped = ended = False
    with selectors.DefaultSelector() as selector:
        for tail in tails:
            selector.register(tail.stream, selectors.EVENT_READ, tail)
        try:
            # A process may close its streams and live on, so both have to end.
            while not (timed_out or stopped) and (selector.get_map() or process.poll() is None):
                if not selector.get_map():
                    time.sleep(_POLL_S / 4)
                for key, _ in selector.select(_POLL_S) if selector.get_map() else ():
                    if not key.data.read():
                        selector.unregister(key.fileobj)
                timed_out = time.monotonic() > deadline
                stopped = not timed_out and stop()
            ended = not (timed_out or stopped)
        finally:
            if not ended:
                _end(process)
    process.wait()
    return timed_out, stopped, tails[0].text(), tails[1].text()


class _Tail:
    """The last bytes of a stream."""

    def __init__(self, stream: IO[bytes], kept_bytes: int) -> None:
        self.stream = stream
        self._kept_bytes = kept_bytes
        self._bytes = b""

    def read(self) -> bool:
        """Take what is there; return whether there may be more."""
        block = os.read(self.stream.fileno(), 65536)
        self._bytes = (self._bytes + block)[-self._kept_bytes :]
        return bool(block)

    def text(self) -> str:
        """Return the bytes as text that databases can store."""
        return self._bytes.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the guardian to end everything; end the guardian itself when it does not answer."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_TERMINATE_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _environment(child: Child, places: Places, *, confined: bool) -> dict[str, str]:
    home = "/tmp" if confined else str(places.output)
    search = [str(places.checkout), *(str(folder) for folder in extra_site_folders())]
    programs = [str(Path(sys.executable).parent), "/usr/local/cuda/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    environment = {
        "PATH": ":".join(programs),
        "HOME": home,
        "TMPDIR": home,
        "USER": "s2bench",
        "LANG": "C.UTF-8",
        "PYTHONPATH": ":".join(search),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "S2ATTN_CACHE_DIR": str(places.cache),
    }
    if child.compiler_cache is not None:
        environment["S2ATTN_CCACHE"] = "1"
        environment["CCACHE_DIR"] = "/ccache" if confined else str(child.compiler_cache)
    return environment | dict(child.environment)


def _bubblewrap(child: Child, environment: Mapping[str, str], command: list[str]) -> list[str]:
    readable = {folder: folder for folder in _system_folders()}
    readable[child.checkout] = Path("/checkout")
    writable = {child.output: Path("/output")}
    (writable if child.cache_writable else readable)[child.cache] = Path("/cache")
    if child.compiler_cache is not None:
        writable[child.compiler_cache] = Path("/ccache")
    prefix: list[str] = []
    sources = {source: source for source in (*readable, *writable)}
    if os.geteuid() == 0:
        prefix, sources = _stage(list(sources))
    arguments = [
        *(
            _program("bwrap"),
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--die-with-parent",
            "--new-session",
        ),
        *("--cap-drop", "ALL", "--clearenv"),
        *_system_root(),
        *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev", "--tmpfs", "/tmp"),
        *("--ro-bind-try", _CPU_INFORMATION, _CPU_INFORMATION),
    ]
    for source, target in readable.items():
        arguments += ["--ro-bind", str(sources[source]), str(target)]
    for source, target in writable.items():
        arguments += ["--bind", str(sources[source]), str(target)]
    for node in child.device_nodes:
        arguments += ["--dev-bind", str(node), str(node)]
    for name, value in environment.items():
        arguments += ["--setenv", name, value]
    return [*prefix, *arguments, "--remount-ro", "/", "--chdir", "/output", "--", *command]


def _system_root() -> list[str]:
    """Bind /usr and what belongs to it; on a merged system the old folders are links into it."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        folder = Path(name)
        if folder.is_symlink():
            arguments += ["--symlink", os.readlink(folder), name]
        elif folder.is_dir():
            arguments += ["--ro-bind", name, name]
    for name in _ETC:
        arguments += ["--ro-bind-try", name, name]
    return arguments


@cache
def _system_folders() -> tuple[Path, ...]:
    """Return the folders outside /usr that the interpreter needs, outermost first."""
    wanted = {Path(sys.prefix), Path(sys.base_prefix), *extra_site_folders()}
    outside = sorted(folder for folder in wanted if not folder.is_relative_to("/usr"))
    return tuple(
        folder for folder in outside if not any(folder != other and folder.is_relative_to(other) for other in outside)
    )


@cache
def extra_site_folders() -> tuple[Path, ...]:
    """Return folders outside the interpreter's own that hold the libraries a benchmark imports."""
    own = [Path(sys.prefix), Path(sys.base_prefix), Path("/usr")]
    found: dict[Path, None] = {}
    for name in ("torch", "numpy", "pynvml"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            origin = Path(spec.origin)
            site = origin.parent.parent if origin.name == "__init__.py" else origin.parent
            if not any(site.is_relative_to(folder) for folder in own):
                found[site] = None
    return tuple(found)


def _stage(folders: list[Path]) -> tuple[list[str], dict[Path, Path]]:
    """Return a command prefix that, as root, makes `folders` reachable for user 65534, and where it puts them.

    A folder below a private one cannot be bound by bwrap once it runs as that user. So root first mounts each on a
    memory file system in a mount namespace that only this child has, and then gives up its rights.
    """
    base = next(
        (Path(stage) for stage in _STAGES if Path(stage).is_dir() and not _overlaps(Path(stage), folders)), None
    )
    if base is None:
        raise JobError(
            "sandbox_missing",
            f"no free folder to prepare the sandbox in, looked at {', '.join(_STAGES)}",
            stage="prepare",
            kind=Kind.PERMANENT,
        )
    staged = {folder: base / str(index) for index, folder in enumerate(folders)}
    script = [f"mount -t tmpfs -o mode=0755 s2bench {base}"]
    for source, target in staged.items():
        quoted = shlex.quote(str(source))
        script.append(f"mkdir {target} && mount --bind {quoted} {target}")
    script.append('exec "$@"')
    unprivileged = [_program("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    prefix = [_program("unshare"), "--mount", "--propagation", "private", "/bin/sh", "-ec", "; ".join(script), "sh"]
    return [*prefix, *unprivileged], staged


def _program(name: str) -> str:
    """Return a program's path, since the child that starts it has no search path."""
    return shutil.which(name) or name


def _overlaps(stage: Path, folders: list[Path]) -> bool:
    return any(folder.is_relative_to(stage) for folder in folders)
