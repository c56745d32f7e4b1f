"""A client of the HTTP API for the command line: submit, follow and read jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

TERMINAL = frozenset({"done", "failed", "canceled", "expired"})
POLL_INTERVAL_S = 0.5

Json = dict[str, Any]


class ClientError(Exception):
    """A request that did not succeed, in words; `usage` says that the caller can mend it (4xx)."""

    def __init__(self, message: str, *, usage: bool, status: int | None = None) -> None:
        super().__init__(message)
        self.usage = usage
        self.status = status


class Client:
    """Talks to one s2bench server.

    Parameters
    ----------
    server : str
        Base URL, e.g. ``http://127.0.0.1:8357``.
    token : str or None
        Sent as a bearer token; needed for writes unless the server accepts them from loopback.
    """

    def __init__(self, server: str, token: str | None = None, timeout_s: float = 30.0) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.server = server.rstrip("/")
        self._http = httpx2.Client(base_url=f"{self.server}/api/v1", headers=headers, timeout=timeout_s)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def request(self, method: str, path: str, **arguments: Any) -> Json:
        """Send a request below /api/v1 and return its JSON object; any failure is a `ClientError`."""
        try:
            response = self._http.request(method, path, **arguments)
        except httpx2.HTTPError as error:
            raise ClientError(f"no answer from {self.server}: {error}", usage=False) from error
        if response.is_success:
            answer: Json = response.json()
            return answer
        raise ClientError(problem_text(response), usage=response.status_code < 500, status=response.status_code)

    def submit(self, body: Json, idempotency_key: str | None = None) -> Json:
        """POST a job and return it."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self.request("POST", "/jobs", json=body, headers=headers)

    def job(self, job_id: str) -> Json:
        """Return a job with its measurements."""
        return self.request("GET", f"/jobs/{job_id}")

    def verdict_rows(self, job_id: str) -> list[Json]:
        """Return the verdict rows of a job."""
        rows: list[Json] = self.request("GET", f"/jobs/{job_id}/verdicts")["rows"]
        return rows

    def commit_rows(self, job_id: str) -> list[Json]:
        """Return what each commit of a job's stack did; none for a job of another kind."""
        rows: list[Json] = self.request("GET", f"/jobs/{job_id}/attribution")["rows"]
        return rows

    def follow(self, job_id: str, on_change: Callable[[Json], None], timeout_s: float | None = None) -> Json:
        """Poll a job until it ends, calling `on_change` after every poll; return the job as it ended.

        A server that goes away for up to a minute (a restart) is waited for.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        last_answer = time.monotonic()
        while True:
            try:
                job = self.job(job_id)
            except ClientError as error:
                if error.usage or time.monotonic() - last_answer > 60:
                    raise
            else:
                last_answer = time.monotonic()
                on_change(job)
                if job["state"] in TERMINAL:
                    return job
            if deadline is not None and time.monotonic() > deadline:
                raise ClientError(f"job {job_id} has not ended within {timeout_s:g} s", usage=False)
            time.sleep(POLL_INTERVAL_S)


def problem_text(response: httpx2.Response) -> str:
    """Return a problem+json answer as one sentence per error; any other answer by its status."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, Mapping):
        return f"{response.request.url} answered {response.status_code}"
    lines = [str(problem.get("detail") or problem.get("title") or response.status_code)]
    for error in problem.get("errors") or []:
        lines.append(f"  {error.get('field')}: got {error.get('got')!r}, expected {error.get('expected')}")
    return "\n".join(lines)
