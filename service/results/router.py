"""/measurements."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from service.auth import Reader
from service.context import Context
from service.fields import CaseName
from service.results import service
from service.results.schemas import EvidenceOut, KernelList, MeasurementOut, PairList, SampleList

router = APIRouter(prefix="/measurements", tags=["measurements"])


class SampleQuery(BaseModel):
    """Which samples to return."""

    model_config = ConfigDict(extra="forbid")

    case: CaseName
    metric: Literal["time", "host_enqueue"] = "time"


class EvidenceQuery(BaseModel):
    """Whose evidence to return."""

    model_config = ConfigDict(extra="forbid")

    case: CaseName


@router.get("/{measurement_id}")
def get_measurement(measurement_id: UUID, context: Context, _reader: Reader) -> MeasurementOut:
    """Return a measurement: state, error, build logs and environments."""
    with context.database.reading() as session:
        return service.get_measurement(session, measurement_id)


@router.get("/{measurement_id}/pairs")
def list_pairs(measurement_id: UUID, context: Context, _reader: Reader) -> PairList:
    """List the pairs of processes with their medians, and whether each counts."""
    with context.database.reading() as session:
        return service.list_pairs(session, measurement_id)


@router.get("/{measurement_id}/samples")
def list_samples(
    measurement_id: UUID, query: Annotated[SampleQuery, Query()], context: Context, _reader: Reader
) -> SampleList:
    """Return the raw samples of one case."""
    with context.database.reading() as session:
        return service.list_samples(session, measurement_id, query.case, query.metric)


@router.get("/{measurement_id}/evidence")
def get_evidence(
    measurement_id: UUID, query: Annotated[EvidenceQuery, Query()], context: Context, _reader: Reader
) -> EvidenceOut:
    """Return what the verdict on one case rests on."""
    with context.database.reading() as session:
        return service.get_evidence(session, measurement_id, query.case)


@router.get("/{measurement_id}/kernels")
def list_kernels(measurement_id: UUID, context: Context, _reader: Reader) -> KernelList:
    """List the kernels of both commits side by side, as profiled once after the pairs."""
    with context.database.reading() as session:
        return service.list_kernels(session, measurement_id)
