"""Measures how fast jobs are taken: `python tests/load/post_jobs.py [--clients 20] [--requests 400]`.

Starts `s2bench api` on a free loopback port with an empty database (SQLite in a temporary folder unless a URL is given,
whose database must be empty and may be thrown away), posts jobs from as many connections as there are clients, each
with the next request as soon as the last is answered, and prints status codes, rate and latencies; five requests per
client before that are not counted, so that the server has its connections and imports behind it. The clients share
this one process, so they write and read plain bytes: an HTTP library would use more CPU than the server and be timed
with it. Not a test: the figures depend on the machine and on who else uses it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from service.embedded import command, end, free_port, wait_until_healthy


def main() -> None:
    """Run the load and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--database-url")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = os.environ | {"S2BENCH_DATA_DIR": name}
        if options.database_url:
            environment["S2BENCH_DATABASE_URL"] = options.database_url
        prepare(folder / "kernels", environment)
        port = free_port()
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command("api", "--port", str(port)), env=environment, stdout=log, stderr=log)
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}", server, folder / "log")
            post(port, options.clients, 5 * options.clients)
            report(*post(port, options.clients, options.requests))
        finally:
            end(server)


def prepare(repository: Path, environment: dict[str, str]) -> None:
    """Make a repository with one commit, the tables, and the repository's row."""
    git = ["git", "-C", str(repository), "-c", "user.name=load", "-c", "user.email=load@example.org"]
    repository.mkdir()
    for arguments in (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "only"]):
        subprocess.run([*git, *arguments], check=True)
    subprocess.run(command("db", "upgrade"), env=environment, check=True, stdout=subprocess.DEVNULL)
    registration = command("repository", "add", "kernels", str(repository))
    subprocess.run(registration, env=environment, check=True, stdout=subprocess.DEVNULL)


def post(port: int, clients: int, requests: int) -> tuple[list[float], Counter[int], set[str], float]:
    """Post jobs and return latencies in seconds, status codes, job ids and the seconds it took."""
    body = json.dumps({"repository": "kernels", "commit": "main", "baseline": "main", "devices": ["cpu"]}).encode()
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    latencies: list[float] = []
    codes: Counter[int] = Counter()
    ids: set[str] = set()
    start = threading.Barrier(clients + 1)

    def client(count: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start.wait()
            for _ in range(count):
                begin = time.perf_counter()
                connection.sendall(request)
                status, answer = read_answer(connection)
                latencies.append(time.perf_counter() - begin)
                codes[status] += 1
                if status == 202:
                    ids.add(json.loads(answer)["id"])

    shares = [requests // clients + (index < requests % clients) for index in range(clients)]
    threads = [threading.Thread(target=client, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return latencies, codes, ids, time.perf_counter() - begin


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Read one answer with a Content-Length and return its status and body."""
    received = b""
    while (end_of_head := received.find(b"\r\n\r\n")) < 0:
        received += connection.recv(65536)
    head, body = received[:end_of_head].lower(), received[end_of_head + 4 :]
    length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
    while len(body) < length:
        body += connection.recv(65536)
    return int(head.split(b" ", 2)[1]), body


def report(latencies: list[float], codes: Counter[int], ids: set[str], elapsed_s: float) -> None:
    """Print the figures."""
    ordered = sorted(latencies)
    p50, p99 = (1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.50, 0.99))
    print(f"status codes {dict(codes)}, {len(ids)} different jobs, {len(ordered) / elapsed_s:.0f} requests/s")
    print(f"latency p50 {p50:.1f} ms, p99 {p99:.1f} ms, highest {1000 * ordered[-1]:.1f} ms")


if __name__ == "__main__":
    main()
