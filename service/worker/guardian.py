"""Stands between the worker and one child process, so that no process of the child outlives the worker.

Run as a script by its path, with the standard library only: `guardian.py SETTINGS COMMAND...` where SETTINGS is
JSON {"parent": pid, "cpus": [..] | null, "limits": {"RLIMIT_CORE": 0, ..}}. It starts the command in a session of
its own, waits for it, and exits with its status (128 + n for signal n). When the worker dies, however it dies, the
kernel sends SIGTERM here; then, and after every end of the command, all descendants are killed. Descendants that
left their session still end up here, because orphans of a subreaper come back to it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CANNOT_START = 127


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _children() -> list[int]:
    own = os.getpid()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stream:
                # The command name is in parentheses and may hold anything; the parent is the second field after it.
                parent = int(stream.read().rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == own:
            found.append(int(entry))
    return found


def _kill_descendants() -> None:
    """Kill generation by generation: the children of a killed process become ours."""
    while True:
        children = _children()
        if not children:
            return
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pid in children:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue


def _on_terminate(number: int, frame: FrameType | None) -> None:
    _kill_descendants()
    os._exit(128 + number)


def _start(command: list[str], settings: dict[str, object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        limits = settings["limits"]
        assert isinstance(limits, dict)
        for name, value in limits.items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (bound, bound))
        cpus = settings["cpus"]
        if isinstance(cpus, list):
            os.sched_setaffinity(0, cpus)
        os.execvpe(command[0], command, os.environ)
    except BaseException as error:
        sys.stderr.write(f"cannot start {command[0]}: {error}\n")
        sys.stderr.flush()
    os._exit(_CANNOT_START)


def main() -> int:
    """Run the command to its end and leave nothing behind."""
    settings = json.loads(sys.argv[1])
    # SIGINT comes to a whole foreground group on Ctrl-C; the worker decides what its children do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _on_terminate)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != settings["parent"]:
        return 128 + signal.SIGTERM  # the worker died before the kernel was asked to tell
    child = _start(sys.argv[2:], settings)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except InterruptedError:
            time.sleep(0.01)
            continue
        if pid == child:
            _kill_descendants()
            return os.waitstatus_to_exitcode(status) % 256 if status & 0x7F == 0 else 128 + (status & 0x7F)


if __name__ == "__main__":
    sys.exit(main())
