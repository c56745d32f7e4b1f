"""/jobs/{job_id}/verdicts, /jobs/{job_id}/attribution, /verdicts and /compare."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from service.auth import Reader
from service.context import Context
from service.fields import CaseName, CommitPrefix, DeviceClass, RefName, RepositoryName, VerdictName
from service.judging import service
from service.judging.queries import VerdictFilter
from service.judging.schemas import ComparisonOut, JobAttribution, JobVerdicts, VerdictList
from service.paging import Cursor, Limit, decode_id_cursor

router = APIRouter(tags=["verdicts"])


class VerdictQuery(BaseModel):
    """Which verdicts to list."""

    model_config = ConfigDict(extra="forbid")

    repository: RepositoryName | None = None
    commit: CommitPrefix | None = None
    case: CaseName | None = None
    device_class: DeviceClass | None = None
    verdict: VerdictName | None = None
    cursor: Cursor | None = None
    limit: Limit = 100


class CompareQuery(BaseModel):
    """Which two commits to compare."""

    model_config = ConfigDict(extra="forbid")

    repository: RepositoryName
    base: RefName
    head: RefName


@router.get("/jobs/{job_id}/verdicts")
def job_verdicts(job_id: UUID, context: Context, _reader: Reader) -> JobVerdicts:
    """Return the verdict table of a job."""
    with context.database.reading() as session:
        return service.job_verdicts(session, job_id)


@router.get("/jobs/{job_id}/attribution")
def job_attribution(job_id: UUID, context: Context, _reader: Reader) -> JobAttribution:
    """Return what each commit of a stack did, case by case; empty for a job of another kind."""
    with context.database.reading() as session:
        return service.job_attribution(session, job_id)


@router.get("/verdicts")
def list_verdicts(query: Annotated[VerdictQuery, Query()], context: Context, _reader: Reader) -> VerdictList:
    """List verdicts, newest first."""
    wanted = VerdictFilter(query.repository, query.commit, query.case, query.device_class, query.verdict)
    with context.database.reading() as session:
        return service.list_verdicts(session, wanted, decode_id_cursor(query.cursor), query.limit)


@router.get("/compare")
def compare(query: Annotated[CompareQuery, Query()], context: Context, _reader: Reader) -> ComparisonOut:
    """Return the verdicts of a commit (`head`) that was measured against another (`base`)."""
    with context.database.reading() as session:
        return service.compare(context, session, query.repository, query.base, query.head)
