"""Does what webhooks ask for: notes pull requests, finds the commits to compare, and makes checks with their jobs.

Events come late, twice and out of order. What a pull request is now is told by GitHub's own time of the change; that a
cause makes a check once is kept by the database; and what was found before a transaction is looked at again inside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from service.alerts.service import acknowledge_pull
from service.context import AppContext
from service.fields import is_case_name
from service.github import queries
from service.github.client import Failure, GitHubClient, GitHubError, Place, as_delivery
from service.github.commits import first_parent, full_sha, merge_base
from service.github.planning import Plan, drop_checks, make_checks
from service.github.schemas import STORED, Command, Event, Pull, Push, Rerun, read_pull
from service.jobs.service import cancel
from service.models import Job, JobKind, PullRequest, Repository, utc_now
from service.models.upsert import insert_missing
from service.outbox.queries import Claimed
from service.outbox.runner import Refused
from service.repositories.placing import is_orphaned
from service.repositories.queries import by_github

CHECK_NAME_CHARACTERS = 120
MAY_COMMAND = frozenset({"admin", "maintain", "write"})
NOTED = ("title", "author", "head_sha", "base_ref", "is_fork", "is_open", "changed_at")
_SHA_PREFIX = re.compile(r"[0-9a-f]{7,40}")


@dataclass
class Intake:
    """Works on stored webhooks; without a client commands and re-runs are refused, since nobody can be asked."""

    context: AppContext
    github: GitHubClient | None

    def handle(self, claimed: Claimed) -> None:
        """Work on a stored webhook, once."""
        with self.context.database.reading() as session:
            webhook = queries.webhook(session, claimed.subject_id)
        if webhook is None or webhook.processed_at is not None:
            return
        event = STORED.validate_python(webhook.payload)
        with as_delivery():
            outcome = self.work(event, webhook.delivery_id)
        with self.context.database.transaction() as session:
            row = queries.webhook(session, claimed.subject_id)
            if row is not None:
                row.outcome, row.processed_at = outcome[:250], utc_now()

    def work(self, event: Event, delivery_id: str) -> str:
        """Do what an event asks for, and return in words what was done; `delivery_id` names what asked."""
        repository = self._repository(event)
        if repository is None:
            return "the repository is not registered"
        if isinstance(event, Push):
            return self._push(repository, event)
        if isinstance(event, Pull):
            return self.see_pull(repository, event)
        if not self._may_command(repository, event.sender):
            return f"{event.sender} has no write access"
        if isinstance(event, Rerun):
            return self._rerun(repository, event, delivery_id)
        if isinstance(event, Command):
            return self._command(repository, event, delivery_id)
        assert_never(event)

    def see_pull(self, repository: Repository, pull: Pull) -> str:
        """Note a pull request; make its checks unless they are there, or it is a fork's that nobody approved."""
        row = self._note(repository, pull)
        if row is None:
            return "older than what is known"
        if not pull.is_open:
            with self.context.database.transaction() as session:
                canceled = drop_checks(session, repository, row, "closed")
            self._cancel(canceled)
            return "closed"
        suites = self.context.settings.github_suites
        waits = pull.is_fork and row.approved_sha != pull.head_sha
        # Not by GitHub's time, which counts seconds; that it happens once is seen to by `once`, under a lock.
        cause = f"pull/{pull.number}@{uuid7().hex}/{pull.base_ref}"
        with self.context.database.reading() as session:
            if _is_planned(session, row, suites, waits=waits):
                return "known"
        if waits:
            self._make(repository, row, f"waiting/{cause}", None, suites, once=True)
            return "a fork's code waits for approval"
        baseline = merge_base(self.context, repository, pull.head_sha, pull.base_ref)
        return self._make(repository, row, cause, baseline, suites, once=True)

    def see_push(self, repository: Repository, head: str) -> str:
        """Make the checks of a commit on the default branch unless they are there."""
        baseline = first_parent(self.context, repository, head)
        plan = Plan(head, baseline, "push", self.context.settings.github_suites, f"push to {repository.default_branch}")
        with self.context.database.transaction() as session:
            canceled = make_checks(self.context, session, repository, plan)
        self._cancel(canceled)
        return "measured"

    # ---- events ----

    def _push(self, repository: Repository, push: Push) -> str:
        if push.branch != repository.default_branch:
            return f"not the branch {repository.default_branch}"
        return self.see_push(repository, push.after)

    def _rerun(self, repository: Repository, rerun: Rerun, delivery_id: str) -> str:
        """Measure again what a check shows; of a fork this is a maintainer's approval of exactly that commit."""
        with self.context.database.reading() as session:
            checks = queries.current_checks(session, repository.id, head_sha=rerun.head_sha)
            found = [check for check in checks if rerun.name in (None, check.name)]
            jobs = queries.jobs_by_id(session, [check.job_id for check in found if check.job_id is not None])
            pulls = {one: session.get(PullRequest, one) for check in found if (one := check.pull_request_id)}
        if not found:
            return "no check of ours"
        for check in found:
            pull = pulls.get(check.pull_request_id) if check.pull_request_id is not None else None
            job = jobs.get(check.job_id) if check.job_id is not None else None
            cause = f"rerun/{delivery_id}/{pull.base_ref if pull is not None else repository.default_branch}"
            self._again(repository, check.name, rerun.head_sha, pull, job, cause)
        return f"{len(found)} again"

    def _again(
        self, repository: Repository, name: str, head: str, pull: PullRequest | None, job: Job | None, cause: str
    ) -> None:
        baseline = job.baseline_sha if job is not None else None
        with self.context.database.reading() as session:
            is_gone = baseline is not None and is_orphaned(session, repository.id, baseline)
        if baseline is None or is_gone:
            branch = pull.base_ref if pull is not None else repository.default_branch
            baseline = merge_base(self.context, repository, head, branch)
        cases = job.cases if job is not None else self.context.settings.github_suites.get(name, "*")
        with self.context.database.transaction() as session:
            row = queries.lock_pull(session, repository.id, pull.number) if pull is not None else None
            if row is not None and row.head_sha != head:
                raise Refused(f"{head[:10]} is no longer the head of #{row.number}")
            if row is not None and row.is_fork:
                row.approved_sha = head
            kind = job.kind if job is not None else JobKind.COMPARE
            plan = Plan(head, baseline, cause, {name: cases}, "re-run", row, kind=kind)
            canceled = make_checks(self.context, session, repository, plan)
        self._cancel(canceled)

    def _command(self, repository: Repository, command: Command, delivery_id: str) -> str:
        pull = self._ask_pull(repository, command.number)
        row = self._note(repository, pull)
        if row is None or not pull.is_open:
            return "the pull request is closed, or has changed meanwhile"
        if command.verb == "run":
            return self._run(repository, row, command.argument, f"command/{delivery_id}/{row.base_ref}")
        if command.verb == "compare":
            return self._compare(repository, row, command.argument, f"command/{delivery_id}/{row.base_ref}")
        if command.verb == "stack":
            return self._stack(repository, row, f"command/{delivery_id}/{row.base_ref}")
        if command.verb == "bisect":
            return self._bisect(repository, row, command.argument, f"command/{delivery_id}/{row.base_ref}")
        if command.verb == "ack":
            return self._acknowledge(repository, row, command)
        return f"unknown command {command.verb!a}"

    def _run(self, repository: Repository, pull: PullRequest, argument: str, cause: str) -> str:
        """Measure the head again; a fork's only when its SHA was named: the head may have moved since it was read."""
        if pull.is_fork and pull.approved_sha != pull.head_sha:
            if not _SHA_PREFIX.fullmatch(argument) or not pull.head_sha.startswith(argument):
                return f"a fork's code runs after `/s2bench run {pull.head_sha[:10]}`"
            with self.context.database.transaction() as session:
                row = queries.lock_pull(session, repository.id, pull.number)
                if row is None or row.head_sha != pull.head_sha:
                    return "the head has moved meanwhile"
                row.approved_sha = row.head_sha
        baseline = merge_base(self.context, repository, pull.head_sha, pull.base_ref)
        return self._make(repository, pull, cause, baseline, self.context.settings.github_suites)

    def _compare(self, repository: Repository, pull: PullRequest, argument: str, cause: str) -> str:
        if waits := _waits(pull):
            return waits
        if not _SHA_PREFIX.fullmatch(argument):
            return "compare: expected 7 to 40 hex digits of a commit"
        baseline = full_sha(self.context, repository, argument, pull.head_sha)
        if baseline == pull.head_sha:
            return "compare: that is the head itself"
        suites = {
            f"{name} against {baseline[:10]}": cases for name, cases in self.context.settings.github_suites.items()
        }
        return self._make(repository, pull, cause, baseline, suites)

    def _stack(self, repository: Repository, pull: PullRequest, cause: str) -> str:
        """Say what each commit of the pull request did; of a fork only a head that may run."""
        if waits := _waits(pull):
            return waits
        baseline = merge_base(self.context, repository, pull.head_sha, pull.base_ref)
        suites = {f"{name} per commit": cases for name, cases in self.context.settings.github_suites.items()}
        return self._make(repository, pull, cause, baseline, suites, kind=JobKind.STACK)

    def _bisect(self, repository: Repository, pull: PullRequest, case: str, cause: str) -> str:
        """Find the commit of the pull request that changed a case; of a fork only of a head that may run."""
        if waits := _waits(pull):
            return waits
        if not is_case_name(case):
            return "bisect: expected the name of one case"
        baseline = merge_base(self.context, repository, pull.head_sha, pull.base_ref)
        name = f"bisect {case}"[:CHECK_NAME_CHARACTERS]
        return self._make(repository, pull, cause, baseline, {name: case}, kind=JobKind.BISECT)

    def _acknowledge(self, repository: Repository, pull: PullRequest, command: Command) -> str:
        """Acknowledge the open alerts of a pull request."""
        if not command.argument:
            return "ack: expected a reason"
        with self.context.database.transaction() as session:
            count = acknowledge_pull(session, repository.id, pull.number, command.argument, command.sender)
        return f"{count} acknowledged"

    # ---- pieces ----

    def _make(
        self,
        repository: Repository,
        pull: PullRequest,
        cause: str,
        baseline: str | None,
        suites: Mapping[str, str],
        *,
        once: bool = False,
        kind: str = JobKind.COMPARE,
    ) -> str:
        """Make checks of a head that was looked at before, if it still is the head; `once`: unless it has them."""
        with self.context.database.transaction() as session:
            row = queries.lock_pull(session, repository.id, pull.number)
            if row is None or row.head_sha != pull.head_sha or not row.is_open:
                return "the head has moved meanwhile"
            if once and _is_planned(session, row, suites, waits=baseline is None):
                return "known"
            reason = f"pull request #{row.number}: {row.title}"
            plan = Plan(row.head_sha, baseline, cause, suites, reason, row, kind=kind)
            canceled = make_checks(self.context, session, repository, plan)
        self._cancel(canceled)
        return "measured"

    def _note(self, repository: Repository, pull: Pull) -> PullRequest | None:
        """Store what a pull request is now and return it; None when something newer is known."""
        values = pull.model_dump(
            include={"title", "author", "head_sha", "base_ref", "is_fork", "is_open", "changed_at"}
        )
        with self.context.database.transaction() as session:
            insert_missing(session, PullRequest, {"repository_id": repository.id, "number": pull.number}, values)
            row = queries.lock_pull(session, repository.id, pull.number)
            assert row is not None
            if pull.changed_at < row.changed_at:
                return None
            moved = pull.head_sha != row.head_sha
            if moved and pull.changed_at == row.changed_at and pull.before != row.head_sha:
                return None  # two pushes in one second: only the one that follows what is known is newer
            for name, value in values.items():
                setattr(row, name, value)
            return row

    def _repository(self, event: Event) -> Repository | None:
        with self.context.database.transaction() as session:
            repository = by_github(session, event.repository)
            if repository is not None and event.installation_id is not None:
                repository.installation_id = event.installation_id
            return repository

    def _may_command(self, repository: Repository, login: str) -> bool:
        github, place = self._place(repository)
        try:
            answer = github.get(place, "/collaborators/{login}/permission", login=login)
        except GitHubError as error:
            if error.failure is Failure.GONE:
                return False
            raise
        return answer.get("role_name", answer["permission"]) in MAY_COMMAND or answer["permission"] in MAY_COMMAND

    def _ask_pull(self, repository: Repository, number: int) -> Pull:
        github, place = self._place(repository)
        answer: dict[str, Any] = github.get(place, "/pulls/{number}", number=number)
        return read_pull(answer, {"repository": place.name})

    def _place(self, repository: Repository) -> tuple[GitHubClient, Place]:
        if self.github is None or repository.github is None:
            raise Refused("nobody can be asked: an administrator sets the credentials of GitHub")
        return self.github, Place(repository.github, repository.installation_id)

    def _cancel(self, job_ids: list[Any]) -> None:
        for job_id in job_ids:
            cancel(self.context, job_id)


def _waits(pull: PullRequest) -> str | None:
    """Say how the code of a fork is let run, where nobody has allowed that of its head."""
    if not pull.is_fork or pull.approved_sha == pull.head_sha:
        return None
    return f"a fork's code runs after `/s2bench run {pull.head_sha[:10]}`"


def _is_planned(session: Session, pull: PullRequest, suites: Mapping[str, str], *, waits: bool) -> bool:
    """Say whether the head of a pull request has every check, against the base branch that it has now.

    Superseded ones do not count: a head may come back after another one, or after the pull request was closed.
    """
    current = queries.current_checks(session, pull.repository_id, pull_request_id=pull.id, head_sha=pull.head_sha)
    names = {
        check.name
        for check in current
        if check.cause.endswith(f"/{pull.base_ref}") and (waits or check.job_id is not None)
    }
    return set(suites) <= names
