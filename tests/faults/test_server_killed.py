"""`s2bench up` killed in the middle of a measurement: after a new start the job ends and nothing is stored twice."""

import os
import signal
import subprocess
import time
from pathlib import Path

import sqlalchemy as sa
from worker_fixtures import FakeRepository, wait_until

from service.client import Client
from service.embedded import command, free_port, wait_until_healthy


def start(repository: Path, data_dir: Path, port: int) -> subprocess.Popen[bytes]:
    arguments = command("up", "--port", str(port), "--data-dir", str(data_dir), "--repository", str(repository))
    with (data_dir / "server.log").open("ab") as log:
        return subprocess.Popen(arguments, stdout=log, stderr=log, env=dict(os.environ))


def test_a_job_survives_the_server(tmp_path: Path) -> None:
    repository = FakeRepository(tmp_path / "kernels")
    base, head = repository.commit("base", run_s=0.3), repository.commit("head", run_s=0.3)
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    port = free_port()
    server = start(repository.path, data_dir, port)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, server, data_dir / "server.log")
        body = {"repository": "kernels", "commit": head, "baseline": base, "devices": ["cpu"], "max_pairs": 8}
        with Client(url) as client:
            job = client.submit(body)

            def pairs_done() -> int:
                return int(client.job(job["id"])["measurements"][0]["progress"]["pairs_done"])

            wait_until(lambda: pairs_done() >= 2, what="the second pair")
            done_before = pairs_done()
            server.send_signal(signal.SIGKILL)
            server.wait()
            time.sleep(1.0)
            server = start(repository.path, data_dir, port)
            wait_until_healthy(url, server, data_dir / "server.log")
            assert pairs_done() >= done_before
            job = client.follow(job["id"], lambda _: None, timeout_s=120)
            rows = client.verdict_rows(job["id"])
        assert job["state"] == "done", (data_dir / "server.log").read_text()
        assert len(rows) == 3
        database = sa.create_engine(f"sqlite:///{data_dir / 's2bench.db'}")
        with database.connect() as connection:
            found = connection.execute(
                sa.text("SELECT pair_index, arm, count(*) FROM arm_run WHERE purpose = 'pair' GROUP BY pair_index, arm")
            ).all()
            attempts = connection.execute(sa.text("SELECT DISTINCT attempt FROM arm_run")).scalars().all()
        database.dispose()
        assert attempts == [1]
        assert sorted(found) == [(index, arm, 1) for index in range(len(found) // 2) for arm in "AB"]
    finally:
        server.terminate()
        server.wait(30)
