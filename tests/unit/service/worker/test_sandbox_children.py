"""Children: what they see, what they cannot reach, and that none outlives its time, its worker or a request to stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_fixtures import processes_with, wait_until

from service.worker import sandbox as sandbox_module
from service.worker.errors import JobError
from service.worker.sandbox import Child, Mode, Outcome, Sandbox, choose_sandbox, make_writable, run_child

ROOT = Path(__file__).parents[4]


class Folders:
    """The folders of one child, with a script in the checkout."""

    def __init__(self, base: Path, sandbox: Sandbox) -> None:
        self.checkout, self.cache, self.output = (base / name for name in ("checkout", "cache", "output"))
        for folder in (self.checkout, self.cache, self.output):
            folder.mkdir()
        make_writable(self.output, sandbox)
        self._sandbox = sandbox

    def run(self, script: str, **values: object) -> Outcome:
        """Run a Python script in a child."""
        (self.checkout / "script.py").write_text(script)
        stop = values.pop("stop", lambda: False)
        settings: dict[str, object] = {"timeout_s": 20.0} | values
        child = Child(
            command=lambda places: [sys.executable, "-P", str(places.checkout / "script.py")],
            checkout=self.checkout,
            cache=self.cache,
            output=self.output,
            **settings,  # type: ignore[arg-type]
        )
        return run_child(child, self._sandbox, stop)  # type: ignore[arg-type]


@pytest.fixture
def folders(tmp_path: Path, sandbox: Sandbox) -> Folders:
    return Folders(tmp_path, sandbox)


@pytest.fixture
def confined_folders(tmp_path: Path, confined: Sandbox) -> Folders:
    return Folders(tmp_path, confined)


@pytest.fixture
def open_port() -> Iterator[int]:
    """A port of this machine that accepts connections."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_child_gets_its_environment_and_nothing_of_the_callers(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S2BENCH_TEST_SECRET", "very secret")
    outcome = folders.run("import os; print(os.environ)", environment={"PYTHONHASHSEED": "0"})
    assert outcome.status == 0
    assert "very secret" not in outcome.stdout
    for name in ("PYTHONPATH", "S2ATTN_CACHE_DIR", "PYTHONHASHSEED", "HOME"):
        assert f"'{name}'" in outcome.stdout
    assert "VIRTUAL_ENV" not in outcome.stdout


def test_the_checkout_comes_before_what_is_installed(folders: Folders) -> None:
    package = folders.checkout / "s2attn"
    package.mkdir()
    (package / "__init__.py").write_text("")
    outcome = folders.run("import s2attn; print(s2attn.__file__)")
    assert "checkout/s2attn/__init__.py" in outcome.stdout


def test_what_a_child_writes_to_its_output_folder_stays(folders: Folders) -> None:
    outcome = folders.run("open('result', 'w').write('done')")
    assert outcome.status == 0, outcome.log
    assert (folders.output / "result").read_text() == "done"


def test_status_output_and_signal_are_reported(folders: Folders) -> None:
    outcome = folders.run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (7, "out\n", "err\n")
    assert outcome.log == "out\nerr"
    assert folders.run("import os; os.kill(os.getpid(), 11)").status == 128 + signal.SIGSEGV


def test_only_the_end_of_long_output_is_kept(folders: Folders) -> None:
    outcome = folders.run("for i in range(5000): print('x' * 100)\nprint('the end\\0')")
    assert len(outcome.stdout) <= sandbox_module.OUTPUT_TAIL_BYTES
    assert outcome.stdout.endswith("the end\N{REPLACEMENT CHARACTER}\n")


@pytest.mark.parametrize(
    "script", ["import time; time.sleep(60)", "import os, time; os.close(1); os.close(2); time.sleep(60)"]
)
def test_a_child_ends_at_its_time_limit(folders: Folders, script: str) -> None:
    started = time.monotonic()
    outcome = folders.run(script, timeout_s=0.5)
    assert outcome.timed_out
    assert not outcome.stopped
    assert time.monotonic() - started < 20


def test_a_child_ends_when_asked_to_stop(folders: Folders) -> None:
    calls = []
    outcome = folders.run("import time; time.sleep(60)", stop=lambda: len(calls) > 1 or calls.append(1) is not None)
    assert outcome.stopped
    assert not outcome.timed_out


def test_an_exception_while_watching_ends_the_child(folders: Folders) -> None:
    marker = f"orphan-{os.getpid()}"

    def stop() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folders.run("import time; time.sleep(60)", stop=stop, environment={"MARKER": marker})
    assert not processes_with(marker)


DAEMON = """
import os, subprocess, sys
source = "import os, time; os.setsid(); os.fork(); time.sleep(60)  # {marker}"
for index in range(4):
    subprocess.Popen([sys.executable, "-c", source])
print("started")
"""


def test_background_processes_of_a_child_end_with_it(folders: Folders) -> None:
    marker = f"daemon-{time.monotonic_ns()}"
    outcome = folders.run(DAEMON.replace("{marker}", marker))
    assert outcome.stdout == "started\n"
    wait_until(lambda: not processes_with(marker), 5, "the end of the background processes")


WORKER = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from service.worker.sandbox import Child, Mode, Sandbox, run_child
folders = [Path({base!r}) / name for name in ("checkout", "cache", "output")]
run_child(Child(lambda places: [sys.executable, "-c", {script!r}], *folders, 60.0), Sandbox(Mode({mode!r})))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_of_a_child_survives_its_worker(
    folders: Folders, tmp_path: Path, sandbox: Sandbox, number: signal.Signals
) -> None:
    marker = f"survivor-{time.monotonic_ns()}"
    script = DAEMON.replace("{marker}", marker) + f"\nimport time; time.sleep(60)  # {marker}"
    source = WORKER.format(root=str(ROOT), base=str(tmp_path), script=script, mode=str(sandbox.mode))
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.DEVNULL) as worker:
        wait_until(lambda: len(processes_with(marker)) >= 8, 30, "the start of all processes")
        worker.send_signal(number)
        worker.wait(20)
    wait_until(lambda: not processes_with(marker), 10, "the end of all processes")


def test_a_confined_child_sees_no_secret_network_or_process_of_the_host(
    confined_folders: Folders, tmp_path: Path, open_port: int
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("very secret")
    socket.create_connection(("127.0.0.1", open_port), 5).close()
    script = f"""
import os, socket
print("exists", os.path.exists({str(secret)!r}), os.path.exists("/etc/passwd"), os.path.exists("/root/.ssh"))
try:
    socket.create_connection(("127.0.0.1", {open_port}), 2)
    print("reached")
except OSError as error:
    print("refused")
print("processes", sum(name.isdigit() for name in os.listdir("/proc")))
print("environ", "very" in open("/proc/1/environ").read())
for path in ("/checkout/new", "/cache/new", "/usr/new", "/new", "/proc/sys/kernel/core_pattern"):
    try:
        open(path, "w").close()
        print("wrote", path)
    except OSError:
        pass
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")], os.getuid() != 0)
"""
    outcome = confined_folders.run(script)
    assert outcome.stderr == ""
    assert outcome.stdout.splitlines() == [
        "exists False False False",
        "refused",
        "processes 2",
        "environ False",
        "['0000000000000000'] True",
    ]


def test_a_cache_is_writable_for_a_build_only(confined_folders: Folders, confined: Sandbox) -> None:
    make_writable(confined_folders.cache, confined)
    script = "import os; open(os.environ['S2ATTN_CACHE_DIR'] + '/x', 'w').write('x')"
    assert confined_folders.run(script).status != 0
    assert confined_folders.run(script, cache_writable=True).status == 0
    assert (confined_folders.cache / "x").read_text() == "x"


def test_a_file_cannot_grow_without_bounds(folders: Folders) -> None:
    outcome = folders.run("open('big', 'wb').write(b'x' * 2_000_000)", file_bytes=1_000_000)
    assert outcome.status != 0
    assert (folders.output / "big").stat().st_size <= 1_000_000


def test_a_child_is_pinned_to_the_given_cpus(folders: Folders) -> None:
    last = max(os.sched_getaffinity(0))
    outcome = folders.run("import os; print(os.sched_getaffinity(0))", cpus=(last,))
    assert outcome.stdout == f"{{{last}}}\n"


def test_a_command_that_does_not_exist_is_reported(folders: Folders, tmp_path: Path, sandbox: Sandbox) -> None:
    child = Child(lambda _: ["/no/such/program"], folders.checkout, folders.cache, folders.output, 20.0)
    outcome = run_child(child, sandbox)
    assert outcome.status != 0
    assert "/no/such/program" in outcome.stderr


def test_choices_of_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "why_unusable", lambda: None)
    assert choose_sandbox("auto", fall_back=False) == Sandbox(Mode.BUBBLEWRAP)
    assert choose_sandbox("none", fall_back=False).mode is Mode.NONE
    with pytest.raises(ValueError, match="expected auto, required or none"):
        choose_sandbox("maybe", fall_back=False)


def test_without_bubblewrap_a_worker_refuses_and_a_comparison_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "why_unusable", lambda: "bwrap is not installed")
    assert choose_sandbox("auto", fall_back=True) == Sandbox(Mode.NONE, "bwrap is not installed")
    for setting, fall_back in (("auto", False), ("required", True)):
        with pytest.raises(JobError) as caught:
            choose_sandbox(setting, fall_back=fall_back)
        assert caught.value.code == "sandbox_missing"
        assert "bwrap is not installed" in caught.value.message


def test_the_probe_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sandbox_module.why_unusable.__wrapped__() == "bwrap is not installed"


def test_the_probe_says_when_bubblewrap_does_not_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reason = sandbox_module.why_unusable.__wrapped__()
    assert reason is not None
    assert reason.startswith("bwrap does not work here: ")
