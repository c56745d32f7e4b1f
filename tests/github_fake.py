"""A stand-in for the few calls of the GitHub API that are used, behind a real HTTP server; and it sends webhooks.

It serves one private repository to git as well. It keeps GitHub's rules as far as they are met here: an App's JWT is
verified and buys an installation token, every other call needs one, or a person's token, which may not make check runs;
check runs need a known commit, a conclusion exactly when completed, and texts within limits; lists come in pages with
Link headers; ids are never given twice. Faults are planted one by one: a limit, an error, an answer that comes too
late, one that gets lost after the work was done.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from serving import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

APP_ID = "77"
INSTALLATION = 4242
SECRET = "a webhook secret of the tests"
REPOSITORY = "octo/kernels"
LIMIT = 65_535
_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PRIVATE_KEY = _KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()


@dataclass
class Fault:
    """What happens to the next requests whose method and path match: `kind` is a status or a word."""

    kind: int | str
    method: str = ""
    path: str = ""
    times: int = 1
    wait_s: float = 1.0


@dataclass
class FakeGitHub:
    """State of the fake; tests read and change it directly."""

    commits: set[str] = field(default_factory=set)
    checks: dict[int, dict[str, Any]] = field(default_factory=dict)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    comments: dict[int, dict[str, Any]] = field(default_factory=dict)
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    permissions: dict[str, str] = field(default_factory=lambda: {"mona": "write"})
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    prefix: str = ""
    url: str = ""
    bare: Path | None = None
    git_requests: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids = count(1)
        self._token = f"ghs_{uuid4().hex}"
        self._personal = f"ghp_{uuid4().hex}"
        self._workflow = f"ghs_{uuid4().hex}"
        self._reading = f"ghs_{uuid4().hex}"
        self._lock = threading.Lock()

    # ---- what tests look at ----

    def check(self, name: str, sha: str) -> dict[str, Any]:
        """Return the newest check of a name at a commit, which is the one that GitHub shows."""
        found = [run for run in self.checks.values() if (run["name"], run["head_sha"]) == (name, sha)]
        assert found, f"no check {name} at {sha}"
        return found[-1]

    def status(self, name: str, sha: str) -> dict[str, Any]:
        """Return the newest status of a name at a commit, which is the one that counts."""
        found = [one for one in self.statuses if (one["context"], one["sha"]) == (name, sha)]
        assert found, f"no status {name} at {sha}"
        return found[-1]

    def count(self, method: str, ending: str) -> int:
        """Return how many requests succeeded."""
        return sum(m == method and path.endswith(ending) and status < 300 for m, path, status in self.requests)

    def plant(self, kind: int | str, method: str = "", path: str = "", times: int = 1, wait_s: float = 1.0) -> None:
        """Plant a fault."""
        self.faults.append(Fault(kind, method, path, times, wait_s))

    # ---- webhooks ----

    def pull(self, number: int, head: str, **changes: Any) -> dict[str, Any]:
        """Store a pull request as it is now and return it."""
        repo = {"full_name": REPOSITORY}
        fork = changes.pop("fork", None)
        self.commits.add(head)
        self.pulls[number] = {
            "number": number,
            "state": "open",
            "title": "a title",
            "user": {"login": "ada"},
            "head": {"sha": head, "ref": "topic", "repo": {"full_name": fork} if fork else repo},
            "base": {"sha": "0" * 40, "ref": changes.pop("base", "main"), "repo": repo},
            "updated_at": datetime.now(UTC).isoformat(),
        } | changes
        return self.pulls[number]

    def pull_event(self, action: str, number: int, before: str | None = None) -> dict[str, Any]:
        """Return the payload of a pull_request event."""
        payload = {"action": action, "number": number, "pull_request": self.pulls[number], **self._common()}
        return payload | ({"before": before, "after": self.pulls[number]["head"]["sha"]} if before else {})

    def push_event(self, after: str, branch: str = "main", **changes: Any) -> dict[str, Any]:
        """Return the payload of a push event."""
        self.commits.add(after)
        self.branches[branch] = after
        return {"ref": f"refs/heads/{branch}", "before": "0" * 40, "after": after, "deleted": False} | (
            self._common() | changes
        )

    def comment_event(self, number: int, body: str, sender: str = "mona") -> dict[str, Any]:
        """Return the payload of a comment on a pull request."""
        comment = {"id": next(self._ids), "body": body, "user": {"login": sender, "type": "User"}}
        issue = {"number": number, "pull_request": {"url": "..."}}
        return {"action": "created", "issue": issue, "comment": comment} | self._common(sender)

    def rerun_event(self, run: dict[str, Any], sender: str = "mona") -> dict[str, Any]:
        """Return the payload of a click on Re-run."""
        return {"action": "rerequested", "check_run": run} | self._common(sender)

    @staticmethod
    def _common(sender: str = "mona") -> dict[str, Any]:
        repository = {"full_name": REPOSITORY, "default_branch": "main", "pushed_at": time.time()}
        return {"repository": repository, "installation": {"id": INSTALLATION}, "sender": {"login": sender}}

    # ---- the API ----

    def app(self) -> Starlette:
        """Return the fake as an application."""
        repo = f"{self.prefix}/repos/{{owner}}/{{repo}}"
        routes = {
            f"POST {self.prefix}/app/installations/{{id:int}}/access_tokens": self._access_token,
            f"GET {repo}/installation": self._installation,
            f"GET {self.prefix}/user": self._user,
            f"POST {repo}/check-runs": self._make_check,
            f"PATCH {repo}/check-runs/{{id:int}}": self._change_check,
            f"GET {repo}/commits/{{sha}}/check-runs": self._list_checks,
            f"POST {repo}/statuses/{{sha}}": self._make_status,
            f"GET {repo}/issues/{{number:int}}/comments": self._list_comments,
            f"POST {repo}/issues/{{number:int}}/comments": self._make_comment,
            f"PATCH {repo}/issues/comments/{{id:int}}": self._change_comment,
            f"GET {repo}/collaborators/{{login}}/permission": self._permission,
            f"GET {repo}/pulls": self._list_pulls,
            f"GET {repo}/pulls/{{number:int}}": self._get_pull,
            f"GET {repo}/branches/{{branch:path}}": self._branch,
        }
        api = [
            Route(path.split(" ")[1], self._around(handler), methods=[path.split(" ")[0]])
            for path, handler in routes.items()
        ]
        return Starlette(routes=[*api, Route("/{owner}/{repo}.git/{rest:path}", self._git, methods=["GET", "POST"])])

    async def _git(self, request: Request) -> Response:
        """Serve the bare repository, which is private, through git's own program."""
        from starlette.concurrency import run_in_threadpool

        readers = {self._token, self._personal, self._reading}
        right = {"Basic " + base64.b64encode(f"x-access-token:{token}".encode()).decode() for token in readers}
        allowed = request.headers.get("authorization") in right
        self.git_requests.append((request.url.path, 200 if allowed else 401))
        if not allowed:
            return Response("Repository not found.", 401, {"www-authenticate": 'Basic realm="GitHub"'})
        assert self.bare is not None
        variables = {
            "GIT_PROJECT_ROOT": str(self.bare),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": f"/{request.path_params['rest']}",
            "REQUEST_METHOD": request.method,
            "QUERY_STRING": request.url.query,
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": "/dev/null",
        }
        body = await request.body()
        done = await run_in_threadpool(
            subprocess.run, ["git", "http-backend"], input=body, env=variables, capture_output=True, check=True
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        return Response(content, int(headers.pop("Status", "200")[:3]), headers)

    def _around(self, handler: Any) -> Any:
        def answer(request: Request, body: Any) -> Response:
            with self._lock:
                fault = next((one for one in self.faults if self._matches(one, request)), None)
                if fault is not None:
                    fault.times -= 1
                    self.faults = [one for one in self.faults if one.times > 0]
            if fault is not None and fault.kind != "lost":
                return self._faulty(fault)
            with self._lock:
                response: Response = self._refusal(request) or handler(request, body)
            if fault is not None:  # the work is done, the answer never comes
                time.sleep(fault.wait_s)
            response.headers.update(_limit_headers(4000))
            return response

        async def endpoint(request: Request) -> Response:
            from starlette.concurrency import run_in_threadpool

            raw = await request.body()
            response = await run_in_threadpool(answer, request, json.loads(raw) if raw else None)
            self.requests.append((request.method, request.url.path, response.status_code))
            return response

        return endpoint

    @staticmethod
    def _matches(fault: Fault, request: Request) -> bool:
        return fault.method in ("", request.method) and fault.path in request.url.path

    @staticmethod
    def _faulty(fault: Fault) -> Response:
        if fault.kind == "limit":
            reset = _limit_headers(0, time.time() + fault.wait_s)
            return JSONResponse({"message": "API rate limit exceeded"}, 403, reset)
        if fault.kind == "secondary":
            message = "You have exceeded a secondary rate limit"
            return JSONResponse({"message": message}, 403, {"retry-after": str(int(fault.wait_s))})
        if fault.kind == "timeout":
            time.sleep(fault.wait_s)
            return JSONResponse({"message": "too late"}, 502)
        if fault.kind == "garbage":
            return Response(b"{<html>", 200, media_type="application/json")
        assert isinstance(fault.kind, int)
        return JSONResponse({"message": f"planted {fault.kind}"}, fault.kind)

    def _refusal(self, request: Request) -> Response | None:
        kind, _, credentials = request.headers.get("authorization", "").partition(" ")
        if request.url.path.endswith(("/access_tokens", "/installation")):
            try:
                claims = jwt.decode(credentials, _KEY.public_key(), algorithms=["RS256"], issuer=APP_ID)
                too_long = claims["exp"] - claims["iat"] > 600
            except jwt.PyJWTError:
                too_long = True
            return JSONResponse({"message": "A JSON web token could not be decoded"}, 401) if too_long else None
        if kind.lower() != "token" or credentials not in {self._token, self._personal, self._workflow}:
            return JSONResponse({"message": "Bad credentials"}, 401)
        if credentials == self._personal and request.method != "GET" and "/check-runs" in request.url.path:
            return JSONResponse({"message": "You must authenticate via a GitHub App."}, 403)
        if f"{request.path_params.get('owner')}/{request.path_params.get('repo')}".lower() not in {
            REPOSITORY,
            "none/none",
        }:
            return _not_found()
        return None

    def _access_token(self, request: Request, body: Any) -> Response:
        if request.path_params["id"] != INSTALLATION:
            return _not_found()
        token = self._token
        if body:
            name = REPOSITORY.partition("/")[2]
            if body != {"repositories": [name], "permissions": {"contents": "read"}}:
                return _invalid("There is at least one repository that does not exist or is not accessible")
            token = self._reading
        expires = datetime.now(UTC) + timedelta(hours=1)
        return JSONResponse({"token": token, "expires_at": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}, 201)

    def _installation(self, request: Request, _body: Any) -> Response:
        if f"{request.path_params['owner']}/{request.path_params['repo']}".lower() != REPOSITORY:
            return _not_found()
        return JSONResponse({"id": INSTALLATION})

    def _user(self, _request: Request, _body: Any) -> Response:
        return JSONResponse({"login": "s2bench-bot"})

    def personal_token(self) -> str:
        """Return a person's token: it may do everything but make check runs."""
        return self._personal

    def installation_token(self) -> str:
        """Return the token of the App's installation that is valid now."""
        return self._token

    def reading_token(self) -> str:
        """Return the token of the App's installation that may read the one repository, and nothing else."""
        return self._reading

    def workflow_token(self) -> str:
        """Return the token that a workflow's run gets."""
        return self._workflow

    def _make_check(self, _request: Request, body: Any) -> Response:
        if body.get("head_sha") not in self.commits:
            return _invalid("No commit found for SHA: " + str(body.get("head_sha")))
        if (problem := _check_problem(body)) is not None:
            return _invalid(problem)
        run = {"id": next(self._ids), "app": {"id": int(APP_ID)}, "status": "queued", "conclusion": None} | body
        self.checks[run["id"]] = run
        return JSONResponse(run, 201)

    def _change_check(self, request: Request, body: Any) -> Response:
        run = self.checks.get(request.path_params["id"])
        if run is None:
            return _not_found()
        if (problem := _check_problem(body)) is not None:
            return _invalid(problem)
        run.update({"conclusion": None} | body if body.get("status") != "completed" else body)
        return JSONResponse(run)

    def _make_status(self, request: Request, body: Any) -> Response:
        sha = request.path_params["sha"]
        if sha not in self.commits:
            return _invalid(f"No commit found for SHA: {sha}")
        if body["state"] not in ("error", "failure", "pending", "success"):
            return _invalid("state is not included in the list")
        if len(body["description"]) > 140:
            return _invalid("description is too long (maximum is 140 characters)")
        self.statuses.append({"id": next(self._ids), "sha": sha} | body)
        return JSONResponse(self.statuses[-1], 201)

    def _list_checks(self, request: Request, _body: Any) -> Response:
        name = request.query_params.get("check_name")
        found = [run for run in self.checks.values() if run["head_sha"] == request.path_params["sha"]]
        found = [run for run in reversed(found) if name in (None, run["name"])]
        return self._page(request, found, "check_runs")

    def _list_comments(self, request: Request, _body: Any) -> Response:
        number = request.path_params["number"]
        return self._page(request, [one for one in self.comments.values() if one["number"] == number])

    def _make_comment(self, request: Request, body: Any) -> Response:
        if (problem := _comment_problem(body)) is not None:
            return _invalid(problem)
        credentials = request.headers["authorization"].partition(" ")[2]
        login = "github-actions[bot]" if credentials == self._workflow else "s2bench-bot"
        comment = {
            "id": next(self._ids),
            "number": request.path_params["number"],
            "body": body["body"],
            "user": {"login": login},
            "performed_via_github_app": {"id": int(APP_ID)} if credentials == self._token else None,
        }
        self.comments[comment["id"]] = comment
        return JSONResponse(comment, 201)

    def _change_comment(self, request: Request, body: Any) -> Response:
        comment = self.comments.get(request.path_params["id"])
        if comment is None:
            return _not_found()
        if (problem := _comment_problem(body)) is not None:
            return _invalid(problem)
        comment["body"] = body["body"]
        return JSONResponse(comment)

    def _permission(self, request: Request, _body: Any) -> Response:
        permission = self.permissions.get(request.path_params["login"])
        if permission is None:
            return _not_found()
        return JSONResponse({"permission": permission, "role_name": permission})

    def _list_pulls(self, request: Request, _body: Any) -> Response:
        state = request.query_params.get("state", "open")
        return self._page(request, [pull for pull in self.pulls.values() if state in ("all", pull["state"])])

    def _get_pull(self, request: Request, _body: Any) -> Response:
        pull = self.pulls.get(request.path_params["number"])
        return JSONResponse(pull) if pull is not None else _not_found()

    def _branch(self, request: Request, _body: Any) -> Response:
        sha = self.branches.get(request.path_params["branch"])
        return JSONResponse({"commit": {"sha": sha}}) if sha is not None else _not_found()

    @staticmethod
    def _page(request: Request, found: list[Any], key: str | None = None) -> Response:
        size, page = int(request.query_params.get("per_page", 30)), int(request.query_params.get("page", 1))
        items = found[(page - 1) * size : page * size]
        headers = {}
        if page * size < len(found):
            headers["link"] = f'<{request.url.include_query_params(page=page + 1)}>; rel="next"'
        return JSONResponse({"total_count": len(found), key: items} if key else items, 200, headers)


def _check_problem(body: Any) -> str | None:
    output = body.get("output") or {}
    if (body.get("status") == "completed") != (body.get("conclusion") is not None):
        return "a conclusion exactly when completed"
    if body.get("conclusion") not in (None, "success", "failure", "neutral", "cancelled", "action_required"):
        return "no such conclusion"
    if len(output.get("summary", "")) > LIMIT or len(output.get("title", "")) > 255:
        return "Only 65535 characters are allowed"
    return None


def _comment_problem(body: Any) -> str | None:
    return "Body is too long (maximum is 65536 characters)" if len(body["body"]) > LIMIT + 1 else None


def _limit_headers(remaining: int, reset: float | None = None) -> dict[str, str]:
    return {
        "x-ratelimit-limit": "5000",
        "x-ratelimit-remaining": str(remaining),
        "x-ratelimit-reset": str(int(reset or time.time() + 3600)),
    }


def _not_found() -> Response:
    return JSONResponse({"message": "Not Found"}, 404)


def _invalid(message: str) -> Response:
    return JSONResponse({"message": "Validation Failed", "errors": [{"code": "custom", "message": message}]}, 422)


def signed(payload: dict[str, Any], secret: str = SECRET) -> tuple[bytes, str]:
    """Return a body and its signature."""
    body = json.dumps(payload).encode()
    return body, "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def deliver(
    server: str, event: str, payload: dict[str, Any], delivery_id: str | None = None, secret: str = SECRET
) -> httpx2.Response:
    """Send a webhook as GitHub does; the same `delivery_id` is a redelivery."""
    body, signature = signed(payload, secret)
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery_id or str(uuid4()),
        "X-Hub-Signature-256": signature,
        "User-Agent": "GitHub-Hookshot/fake",
    }
    url = f"{server}/api/v1/github/webhook"
    # plain HTTP: reading the certificates of the world for it would take as long as the whole call
    return httpx2.post(url, content=body, headers=headers, timeout=30, verify=False)


@contextmanager
def fake_github(prefix: str = "") -> Iterator[FakeGitHub]:
    """Run a fake; `prefix` is "/api/v3" as of GitHub Enterprise."""
    fake = FakeGitHub(prefix=prefix)
    with serving(fake.app()) as url:
        fake.url = url + prefix
        yield fake


def app_settings(fake: FakeGitHub, folder: Path) -> dict[str, Any]:
    """Return the settings of an App at the fake; its key is written to a file."""
    key = folder / "app.pem"
    key.write_text(PRIVATE_KEY)
    return {
        "github_api_url": fake.url,
        "github_app_id": APP_ID,
        "github_private_key_file": key,
        "github_webhook_secret": SECRET,
        "public_url": "https://bench.example",
    }
