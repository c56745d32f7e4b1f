"""Finds the commits whose webhook was lost: what is open and on the default branch now is told as if by a webhook."""

from __future__ import annotations

from service.db import DATABASE_AWAY
from service.github.client import GitHubClient, GitHubError, Place
from service.github.intake import Intake
from service.github.schemas import Pull, Push, read_pull
from service.logs import logger
from service.models import Repository
from service.outbox.runner import Refused, TryLater
from service.repositories.queries import on_github

CAUSE = "poll"


def poll(intake: Intake, github: GitHubClient) -> int:
    """Look at every repository on GitHub; return how many of its heads were looked at. A failure waits for the next."""
    try:
        with intake.context.database.reading() as session:
            repositories = on_github(session)
    except DATABASE_AWAY as error:
        logger.warning("poll_waits", error=str(error).splitlines()[0])
        return 0
    return sum(_poll_one(intake, github, repository) for repository in repositories)


def _poll_one(intake: Intake, github: GitHubClient, repository: Repository) -> int:
    assert repository.github is not None
    place = Place(repository.github, repository.installation_id)
    log = logger.bind(repository=repository.name)
    try:
        pulls = github.items(place, "/pulls{?state,per_page}", state="open", per_page=100)
        branch = github.get(place, "/branches/{branch}", branch=repository.default_branch)
    except GitHubError as error:
        log.warning("poll_failed", error=str(error))
        return 0
    try:
        noted = [read_pull(pull, {"repository": place.name}) for pull in pulls]
        push = Push(repository=place.name, branch=repository.default_branch, after=branch["commit"]["sha"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("poll_failed", error=f"GitHub's answer is not as expected: {type(error).__name__}")
        return 0
    # What has not been touched since the repository was registered was never asked for.
    events: list[Pull | Push] = [pull for pull in noted if pull.changed_at >= repository.created_at]
    events.append(push)
    for event in events:
        try:
            intake.work(event, CAUSE)
        except (GitHubError, Refused, TryLater, *DATABASE_AWAY) as error:
            log.warning("poll_failed", error=str(error).splitlines()[0])
    return len(events)
