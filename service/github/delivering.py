"""Brings checks and comments on GitHub to what the database says now.

Repeating it is harmless: GitHub's id of what was made is stored, and where a try may have made something without being
able to store it (its process died, the answer got lost), the next one looks for it first: a check by the id of ours
that it carries, a comment by its marker and its author.

Only Apps may make check runs. With a person's token a check is a commit status of the same name, of which the newest
counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import update

from service.context import AppContext
from service.github import queries
from service.github.client import Failure, GitHubClient, GitHubError, Place, as_delivery
from service.github.conclusion import Conclusion
from service.github.findings import SUPERSEDED, WAITING, job_findings, jobs_of_head, links_of
from service.github.report import MARKER, check_summary, comment_body
from service.models import TERMINAL, CheckRun, Job, PullRequest, Repository, State
from service.outbox.queries import Claimed

Body = dict[str, Any]
STATUS_CHARACTERS = 140


@dataclass
class Delivering:
    """The handlers of checks and comments."""

    context: AppContext
    github: GitHubClient
    _only_statuses: bool = field(default=False, init=False)

    def check(self, claimed: Claimed) -> None:
        """Make or change a check run."""
        with self.context.database.reading() as session:
            check = session.get(CheckRun, claimed.subject_id)
            if check is None:
                return
            repository = session.get_one(Repository, check.repository_id)
            job = session.get(Job, check.job_id) if check.job_id is not None else None
            if repository.github is None:
                return
            body = self._check_body(session, repository, check, job)
            place = Place(repository.github, repository.installation_id)
            has_successor = check.superseded_by is not None and any(
                other.name == check.name
                for other in queries.current_checks(session, repository.id, head_sha=check.head_sha)
            )
        with as_delivery():
            remote_id = self._put_check_or_status(place, check, body, claimed, has_successor=has_successor)
        if remote_id != check.remote_id:
            self._store(update(CheckRun).where(CheckRun.id == check.id).values(remote_id=remote_id))

    def comment(self, claimed: Claimed) -> None:
        """Make or change the comment of a pull request."""
        with self.context.database.reading() as session:
            pull = session.get(PullRequest, claimed.subject_id)
            if pull is None:
                return
            repository = session.get_one(Repository, pull.repository_id)
            found = jobs_of_head(session, pull.id, pull.head_sha)
            if repository.github is None or not found:
                return
            findings = [
                job_findings(session, self.context.settings, repository, job, check.name) for check, job in found
            ]
            body = comment_body(findings, links_of(self.context.settings, repository))
            place = Place(repository.github, repository.installation_id)
        with as_delivery():
            comment_id = self._put_comment(place, pull, body)
        if comment_id != pull.comment_id:
            self._store(update(PullRequest).where(PullRequest.id == pull.id).values(comment_id=comment_id))

    # ---- checks ----

    def _check_body(self, session: Any, repository: Repository, check: CheckRun, job: Job | None) -> Body:
        settings = self.context.settings
        body: Body = {"name": check.name, "external_id": str(check.id), "details_url": settings.public_url}
        if job is None:
            if check.superseded_by is not None:
                return body | _verdict(SUPERSEDED, _superseded_text(check))
            hint = f"It runs when somebody with write access comments `/s2bench run {check.head_sha[:10]}`."
            return body | _verdict(WAITING, hint)
        body["details_url"] = f"{settings.public_url}/jobs/{job.id}"
        if check.superseded_by is not None and job.state != State.DONE:
            return body | _verdict(SUPERSEDED, _superseded_text(check))
        findings = job_findings(session, settings, repository, job, check.name)
        body |= _verdict(findings.conclusion, check_summary(findings, links_of(settings, repository)))
        if job.state in TERMINAL and job.finished_at is not None:
            body["completed_at"] = job.finished_at.isoformat()
        return body

    def _put_check_or_status(
        self, place: Place, check: CheckRun, body: Body, claimed: Claimed, *, has_successor: bool
    ) -> int | None:
        if not self._only_statuses:
            try:
                return self._put_check(place, check, body, known=claimed.attempts == 1)
            except GitHubError as error:
                if error.failure is not Failure.NEEDS_APP:
                    raise
                self._only_statuses = True
        if not has_successor:  # a status has no id: it would take the place of its successor's
            self.github.post(place, "/statuses/{sha}", _status(body), sha=check.head_sha)
        return check.remote_id

    def _put_check(self, place: Place, check: CheckRun, body: Body, *, known: bool) -> int:
        remote_id = check.remote_id
        if remote_id is None and not known:
            remote_id = self._find_check(place, check)
        if remote_id is not None:
            try:
                self.github.patch(place, "/check-runs/{id}", body, id=remote_id)
                return remote_id
            except GitHubError as error:
                if error.failure is not Failure.GONE:
                    raise
        answer = self.github.post(place, "/check-runs", body | {"head_sha": check.head_sha})
        return int(answer["id"])

    def _find_check(self, place: Place, check: CheckRun) -> int | None:
        path = "/commits/{sha}/check-runs{?check_name,filter,per_page}"
        found = self.github.items(
            place, path, "check_runs", sha=check.head_sha, check_name=check.name, filter="all", per_page=100
        )
        return next((int(run["id"]) for run in found if run.get("external_id") == str(check.id)), None)

    # ---- comments ----

    def _put_comment(self, place: Place, pull: PullRequest, body: str) -> int:
        comment_id = pull.comment_id or self._find_comment(place, pull.number)
        if comment_id is not None:
            try:
                self.github.patch(place, "/issues/comments/{id}", {"body": body}, id=comment_id)
                return comment_id
            except GitHubError as error:
                if error.failure is not Failure.GONE:
                    raise
        answer = self.github.post(place, "/issues/{number}/comments", {"body": body}, number=pull.number)
        return int(answer["id"])

    def _find_comment(self, place: Place, number: int) -> int | None:
        found = self.github.items(place, "/issues/{number}/comments{?per_page}", number=number, per_page=100)
        marked = [comment for comment in found if str(comment.get("body", "")).startswith(MARKER)]
        return next((int(one["id"]) for one in marked if self.github.is_mine(place, one)), None)

    def _store(self, statement: Any) -> None:
        with self.context.database.transaction() as session:
            session.execute(statement)


def _verdict(conclusion: Conclusion, summary: str) -> Body:
    body: Body = {"status": conclusion.status, "output": {"title": conclusion.title, "summary": summary}}
    if conclusion.conclusion is not None:
        body["conclusion"] = conclusion.conclusion
    return body


def _status(body: Body) -> Body:
    """Return a check as a commit status, which knows no neutral: that is a success that says what it is."""
    conclusion, title = body.get("conclusion"), body["output"]["title"]
    states = {"success": "success", "neutral": "success", "failure": "failure"}
    text = f"neutral: {title}" if conclusion == "neutral" else title
    description = text if len(text) <= STATUS_CHARACTERS else text[: STATUS_CHARACTERS - 1] + "…"
    state = states.get(conclusion or "", "pending")
    return {"state": state, "context": body["name"], "description": description, "target_url": body["details_url"]}


def _superseded_text(check: CheckRun) -> str:
    return f"Superseded by `{(check.superseded_by or '')[:40]}`: it was not measured to its end."
