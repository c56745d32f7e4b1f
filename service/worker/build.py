"""Builds the kernels of a checkout, once per key, with the checkout's own `python -m s2attn.build`.

The key says everything that decides the outcome: the source folders' git tree hashes, the interpreter, torch, the
compilers and the device. A finished build is a folder that no child can write to any more.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from service.worker.checkout import Checkout
from service.worker.devices import MeasuringDevice
from service.worker.errors import Canceled, JobError, Kind
from service.worker.host import Host, never_stop
from service.worker.sandbox import OUTPUT_TAIL_BYTES, Child, Outcome, Places, make_writable, run_child

STAGE = "build"
_BUILD_FILE_BYTES = 4 * 2**30
_REPORT_BYTES = 8 * 2**20  # a CUDA library has some 160 kernels, each reported with its figures
_RECORD = "build.json"


@dataclass(frozen=True)
class BuildResult:
    """A finished build: `cache` is the folder that runs see read-only, `report` what the checkout's builder printed."""

    key: str
    cache: Path
    elapsed_s: float
    log: str
    report: dict[str, Any]
    reused: bool


def build_key(checkout: Checkout, device: MeasuringDevice) -> str:
    """Return the hash of what a build depends on."""
    parts = [
        "s2bench build 1",
        *checkout.source_hashes,
        sys.executable,
        sys.version,
        platform.machine(),
        f"torch {importlib.metadata.version('torch')}",
        *_compilers(),
        device.kind,
        device.name,
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def build(
    checkout: Checkout, device: MeasuringDevice, host: Host, stop: Callable[[], bool] = never_stop
) -> BuildResult:
    """Return the build of a checkout for a device, making it unless it is there already."""
    key = build_key(checkout, device)
    folder = host.data_dir / "builds" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _RECORD).exists():
            return _read(folder, reused=True)
        draft = folder.with_suffix(".draft")
        if draft.exists():
            shutil.rmtree(draft)  # left by a worker that died while building
        (draft / "cache").mkdir(parents=True)
        result = _run(checkout, device, host, draft, stop)
        record = asdict(result) | {"cache": None}
        (draft / _RECORD).write_text(json.dumps(record))
        draft.rename(folder)
    return _read(folder, reused=False)


def _run(checkout: Checkout, device: MeasuringDevice, host: Host, draft: Path, stop: Callable[[], bool]) -> BuildResult:
    output = draft / "output"
    output.mkdir()
    compiler_cache = _compiler_cache(host)
    for folder in (draft / "cache", output, *((compiler_cache,) if compiler_cache else ())):
        make_writable(folder, host.sandbox)

    def command(places: Places) -> list[str]:
        return [sys.executable, "-P", "-m", "s2attn.build", "--json", "--device", device.kind]

    child = Child(
        command=command,
        checkout=checkout.path,
        cache=draft / "cache",
        output=output,
        timeout_s=host.limits.build_timeout_s,
        cache_writable=True,
        compiler_cache=compiler_cache,
        device_nodes=device.nodes,
        cpus=host.cpus,
        environment=device.environment,
        file_bytes=_BUILD_FILE_BYTES,
        stdout_bytes=_REPORT_BYTES,
    )
    started = time.monotonic()
    outcome = run_child(child, host.sandbox, stop)
    shutil.rmtree(output)
    report = _judge(outcome, checkout, host)
    log = outcome.stderr + _compiler_log(report, draft / "cache")
    return BuildResult(draft.stem, draft / "cache", time.monotonic() - started, log, report, reused=False)


def _compiler_log(report: dict[str, Any], cache: Path) -> str:
    """Return the end of the logs that the report names; of their paths only the part below the cache is used."""
    texts = []
    libraries = report.get("libraries")
    for entry in libraries if isinstance(libraries, list) else [report]:
        path = str(entry.get("log", "")) if isinstance(entry, dict) else ""
        file = cache.joinpath(*Path(path).parts[-2:])
        if path and ".." not in file.parts and file.is_file() and file.resolve().is_relative_to(cache.resolve()):
            with file.open("rb") as stream:
                stream.seek(max(0, file.stat().st_size - OUTPUT_TAIL_BYTES))
                texts.append(stream.read(OUTPUT_TAIL_BYTES).decode("utf-8", "replace").replace("\0", "?"))
    return "\n".join(texts)


def _judge(outcome: Outcome, checkout: Checkout, host: Host) -> dict[str, Any]:
    name = checkout.sha[:10]
    if outcome.stopped:
        raise Canceled(f"the build of {name} was stopped")
    if outcome.timed_out:
        limit = host.limits.build_timeout_s
        raise JobError("build_timeout", f"{name} did not build within {limit:g} s", stage=STAGE, log_tail=outcome.log)
    if outcome.status != 0:
        # An ending by SIGKILL that nobody here sent is the kernel running out of memory.
        kind = Kind.TRANSIENT if outcome.status == 137 else Kind.PERMANENT
        message = f"{name} does not build (exit status {outcome.status})"
        raise JobError("build_failed", message, stage=STAGE, log_tail=outcome.log, kind=kind)
    lines = outcome.stdout.strip().splitlines()
    try:
        report = json.loads(lines[-1]) if lines else None
    except ValueError:
        report = None
    if not isinstance(report, dict):
        message = f"the builder of {name} printed no JSON object as its last line"
        raise JobError("build_failed", message, stage=STAGE, log_tail=outcome.log)
    return report


def _read(folder: Path, *, reused: bool) -> BuildResult:
    record = json.loads((folder / _RECORD).read_text())
    return BuildResult(**(record | {"key": folder.name, "cache": folder / "cache", "reused": reused}))


def _compiler_cache(host: Host) -> Path | None:
    if not host.share_compiler_cache or shutil.which("ccache") is None:
        return None
    folder = host.data_dir / "ccache"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _compilers() -> tuple[str, ...]:
    found = []
    for program in ("g++", "nvcc"):
        path = shutil.which(program) or shutil.which(program, path="/usr/local/cuda/bin")
        if path is not None:
            text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout
            found.append(f"{program} {text.strip()}")
    return tuple(found)
