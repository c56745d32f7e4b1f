"""All tables of the service; importing this package registers every model on `Base.metadata`."""

from service.models.alerts import Alert, AlertCase, AlertEvent, AlertState
from service.models.base import Base, utc_now
from service.models.fleet import Device, Token, Worker
from service.models.github import CheckRun, Delivery, DeliveryKind, PullRequest, WebhookDelivery
from service.models.history import ChangePoint, DriftNotice, HistoryRequest, SeriesHistory
from service.models.jobs import TERMINAL, Job, JobEvent, JobKind, Measurement, State
from service.models.results import (
    ArmRun,
    Build,
    Calibration,
    Case,
    KernelProfile,
    Point,
    SampleBlock,
    Series,
    TelemetryBlock,
    Verdict,
)
from service.models.source import Commit, Repository
from service.models.stacks import Attribution

__all__ = [
    "TERMINAL",
    "Alert",
    "AlertCase",
    "AlertEvent",
    "AlertState",
    "ArmRun",
    "Attribution",
    "Base",
    "Build",
    "Calibration",
    "Case",
    "ChangePoint",
    "CheckRun",
    "Commit",
    "Delivery",
    "DeliveryKind",
    "Device",
    "DriftNotice",
    "HistoryRequest",
    "Job",
    "JobEvent",
    "JobKind",
    "KernelProfile",
    "Measurement",
    "Point",
    "PullRequest",
    "Repository",
    "SampleBlock",
    "Series",
    "SeriesHistory",
    "State",
    "TelemetryBlock",
    "Token",
    "Verdict",
    "WebhookDelivery",
    "Worker",
    "utc_now",
]
