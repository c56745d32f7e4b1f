"""`python -m s2attn.benchmarks list | run | profile`: protocol 1 with planted times and planted misbehavior.

Only commits with a planted "profile" have that command, as real ones before it came.
"""

import argparse
import fnmatch
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import s2attn
from s2attn import BEHAVIOR

NAMES = BEHAVIOR.get("cases", ["cpu/forward/self", "cpu/forward/down", "cpu/backward/self"])
BASE_MS = 5.0
PLANTED_SAMPLES = {"nan": float("nan"), "inf": float("inf"), "zero": 0.0, "negative": -1.0}


def main() -> int:
    """Do what was asked for, or what was planted instead."""
    parser = argparse.ArgumentParser()
    commands = ["list", "run", *(["profile"] if "profile" in BEHAVIOR else [])]
    parser.add_argument("command", choices=commands)
    parser.add_argument("--cases", action="append")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--arm")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--protocol", type=int, default=1)
    parser.add_argument("--numerics", default="with")
    parser.add_argument("--samples", type=int, default=15)
    options = parser.parse_args()
    names = [name for name in NAMES if any(fnmatch.fnmatchcase(name, glob) for glob in options.cases or ["*"])]
    if options.command == "list":
        print(json.dumps({"protocol": 1, "cases": [{"name": name} for name in names]}))
        return 0
    if options.command == "profile":
        return profile(options, names)
    if not names:
        print(f"no case matches {options.cases!r}", file=sys.stderr)
        return 2
    print(f"measuring {BEHAVIOR['name']}", file=sys.stderr)
    time.sleep(BEHAVIOR.get("run_s", 0.0))
    what = BEHAVIOR.get("run", "normal")
    if BEHAVIOR.get("only_pairs") and options.numerics == "only":
        what = "normal"
    return misbehave(what, options, names)


def misbehave(what: str, options: argparse.Namespace, names: list[str]) -> int:
    """Carry out what was planted; `normal` and everything that only concerns the document end in one."""
    document = make_document(options, names, what)
    if what == "crash":
        print("about to crash", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "exit":
        return 3
    if what == "hang":
        time.sleep(600)
    if what == "close_and_hang":
        os.close(1)
        os.close(2)
        time.sleep(600)
    if what == "no_document":
        return 0
    if what == "garbage":
        options.out.write_text("{not a document")
        return 0
    if what == "link":
        options.out.symlink_to("/etc/passwd")
        return 0
    if what == "huge":
        with options.out.open("wb") as stream:
            stream.truncate(BEHAVIOR["huge_bytes"])
        return 0
    if what == "chatty":
        for _ in range(3000):
            print("x" * 1000)
        print("the last words")
    if what == "background":
        for _ in range(5):
            subprocess.Popen(
                [sys.executable, "-c", f"import os, time; os.setsid(); time.sleep(600)  # {BEHAVIOR['marker']}"]
            )
    if what == "snoop":
        document["environment"]["found"] = snoop()
    if what == "twice":
        options.out.write_text(json.dumps(document | {"arm": "C"}))
    options.out.write_text(json.dumps(document))
    return 0


def profile(options: argparse.Namespace, names: list[str]) -> int:
    """Write a profile with the planted milliseconds per kernel, or do what was planted instead."""
    what = BEHAVIOR["profile"]
    if what == "crash":
        print("the profiler gave up", file=sys.stderr)
        return 1
    if what == "hang":
        time.sleep(600)
    kernels = [
        {"name": name, "kind": "kernel", "calls": 1, "time_ms": time_ms, "share": 0.5, "grid": [8, 4, 1]}
        | {"block": [128, 1, 1], "registers": 40, "occupancy": 0.75, "sass_bytes": 4096, "spill_load_bytes": 0}
        for name, time_ms in ({} if what == "garbage" else what).items()
    ]
    document = {
        "protocol": 1,
        "kind": "profile",
        "device": options.device,
        "source": "fake",
        "calls": 10,
        "package_path": str(Path(s2attn.__file__).resolve().parent),
        "counters": {"cases": 0, "reason": "a fake has none"},
        "cases": [
            {"name": name, "version": "0123456789abcdef", "status": "ok", "error": None, "time_ms": 1.0}
            | {"kernels": kernels if what != "garbage" else [{"name": "x", "kind": "kernel", "time_ms": -1}]}
            for name in names
        ],
    }
    options.out.write_text(json.dumps(document))
    return 0


def snoop() -> dict[str, object]:
    """Reach for what a confined process must not have."""
    found: dict[str, object] = {
        "environment": sorted(os.environ),
        "pid_count": sum(e.isdigit() for e in os.listdir("/proc")),
    }
    try:
        found["secret"] = Path(BEHAVIOR["secret"]).read_text()
    except OSError as error:
        found["secret"] = f"refused: {error.strerror}"
    try:
        socket.create_connection(("127.0.0.1", BEHAVIOR["port"]), 2).close()
        found["network"] = "reached"
    except OSError as error:
        found["network"] = f"refused: {error.strerror}"
    for name, place in {"checkout": Path(s2attn.__file__), "cache": Path(os.environ["S2ATTN_CACHE_DIR"]) / "x"}.items():
        try:
            place.write_text("changed")
            found[name] = "changed"
        except OSError as error:
            found[name] = f"refused: {error.strerror}"
    return found


def make_document(options: argparse.Namespace, names: list[str], what: str) -> dict[str, object]:
    """Return a sound document but for planted samples."""
    return {
        "protocol": 1,
        "arm": options.arm,
        "package_path": str(Path(s2attn.__file__).resolve().parent),
        "s2attn_version": s2attn.__version__,
        "started_at": datetime.now(UTC).isoformat(),
        "wall_s": 1.0,
        "numerics_mode": options.numerics,
        "environment": {"device": options.device, "gpu_uuid": None, "affinity": sorted(os.sched_getaffinity(0))},
        "telemetry": {
            "source": "proc",
            "columns": ["t_s", "frequency_mhz", "steal_share", "foreign_share", "involuntary_switches"],
            "rows": [[0.1 * step, 3000.0, BEHAVIOR.get("steal", 0.0), 0.0, 0] for step in range(11)],
            "counters": {},
        },
        "cases": [make_case(options, name, what) for name in names],
    }


def make_case(options: argparse.Namespace, name: str, what: str) -> dict[str, object]:
    """Return one case; its times scatter by 0.2 % (or as planted) from process to process and by 0.5 % inside one."""
    speed = BEHAVIOR.get("speed", {}).get(name, 1.0)
    if options.arm == "B":
        speed *= BEHAVIOR.get("slower_as_candidate", {}).get(name, 1.0)
    level = BASE_MS * speed * random.lognormvariate(0.0, BEHAVIOR.get("scatter", 0.002))
    samples = [level * random.gauss(1.0, 0.005) for _ in range(options.samples)]
    if what in PLANTED_SAMPLES:
        samples[3] = PLANTED_SAMPLES[what]
    broken = name in BEHAVIOR.get("broken_cases", [])
    if options.numerics == "only" or broken:
        samples = []
    if what == "no_samples":
        samples = []
    return {
        "name": name,
        "version": BEHAVIOR.get("version", "0123456789abcdef"),
        "group": "cpu." + name.split("/")[1],
        "device": options.device,
        "definition": {"op": name.split("/")[1]},
        "status": "failed" if broken else "ok",
        "error": "this case is broken" if broken else None,
        "backend": "cpu",
        "variant": "fake",
        "metric": "time",
        "unit": "s" if what == "seconds" else "ms",
        "samples": samples,
        "sample_start_s": [0.05 * index for index in range(len(samples))],
        "sample_end_s": [0.05 * index + 0.005 for index in range(len(samples))],
        "host_enqueue_ms": list(samples),
        "queued": [True] * len(samples),
        "cycles": None,
        "warmups": 3,
        "numerics": None if options.numerics == "skip" or broken else numerics(name),
    }


def numerics(name: str) -> dict[str, object]:
    """Return the check of the case's numbers."""
    wrong = name in BEHAVIOR.get("wrong_cases", [])
    return {
        "status": "failed" if wrong else "ok",
        "reference": "float64",
        "points": "all",
        "errors": {"y": {"max_abs": 0.5 if wrong else 1e-6, "relative": 0.3 if wrong else 1e-7}},
        "tolerance": {"relative": 1e-5},
        "finite": True,
    }


if __name__ == "__main__":
    sys.exit(main())
