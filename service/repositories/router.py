"""/repositories."""

from __future__ import annotations

from fastapi import APIRouter

from service.auth import Administrator, Reader
from service.context import Context
from service.repositories import service
from service.repositories.schemas import RepositoryList, RepositoryOut, RepositoryRequest

router = APIRouter(prefix="/repositories", tags=["repositories"])


@router.get("")
def list_repositories(context: Context, _reader: Reader) -> RepositoryList:
    """List the repositories whose commits may be measured."""
    with context.database.reading() as session:
        return service.list_repositories(session)


@router.post("", status_code=201)
def register_repository(request: RepositoryRequest, context: Context, _administrator: Administrator) -> RepositoryOut:
    """Register a repository, or change the URL and default branch of the one with this name."""
    with context.database.transaction() as session:
        return RepositoryOut.model_validate(
            service.register(session, request.name, request.url, request.default_branch, request.github)
        )
