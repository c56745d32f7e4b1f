"""All tables of the service; importing this package registers every model on `Base.metadata`."""

from service.models.base import Base, utc_now
from service.models.fleet import Device, Token, Worker
from service.models.jobs import TERMINAL, Job, JobEvent, Measurement, State
from service.models.results import (
    ArmRun,
    Build,
    Case,
    KernelProfile,
    Point,
    SampleBlock,
    Series,
    TelemetryBlock,
    Verdict,
)
from service.models.source import Commit, Repository

__all__ = [
    "TERMINAL",
    "ArmRun",
    "Base",
    "Build",
    "Case",
    "Commit",
    "Device",
    "Job",
    "JobEvent",
    "KernelProfile",
    "Measurement",
    "Point",
    "Repository",
    "SampleBlock",
    "Series",
    "State",
    "TelemetryBlock",
    "Token",
    "Verdict",
    "Worker",
    "utc_now",
]
