"""What earlier verdicts say a case usually shows on a device, read from both databases."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from worker_fixtures import Jobs

from service.db import Database
from service.models import Case, Device, Measurement, Verdict, Worker, utc_now
from service.stats.admission import CaseHistory
from service.worker.storing import usual_cases


class Past:
    """Verdicts of earlier measurements, and a measurement that begins now."""

    def __init__(self, database: Database, path: Path) -> None:
        self.database, self.jobs = database, Jobs(database, str(path))
        self.now = self.jobs.submit("now", queue=False)
        with database.transaction() as session:
            session.get_one(Measurement, self.now).started_at = utc_now()

    def device(self, worker: str, uuid: str) -> UUID:
        """Store a worker's device."""
        with self.database.transaction() as session:
            row = Worker(executor_id=worker, host="h", pid=1, version="0", sandbox="none")
            session.add(row)
            session.flush()
            device = Device(worker_id=row.id, device_class="cpu", uuid=uuid, name="x", status="ready", info={})
            session.add(device)
            session.flush()
            return device.id

    def verdicts(self, device: UUID, count: int = 5, *, verdict: str = "unchanged", days: float = 1.0) -> None:
        """Store one verdict in each of so many measurements on a device, so many days ago."""
        ratios = (0.001, -0.001, 0.002, -0.002, 0.0)
        scatter = {"scatter_before": 0.004, "scatter_after": 0.006, "clock_before": 1980.0, "clock_after": 1965.0}
        pairs = [{"index": i, "admitted": True, "log_ratio": ratio, **scatter} for i, ratio in enumerate(ratios)]
        values = {"reasons": [], "unit": "ms", "pairs_used": 5, "pairs_rejected": 0, "evidence": {"pairs": pairs}}
        for _ in range(count):
            measurement_id = self.jobs.submit("old", queue=False)
            with self.database.transaction() as session:
                session.get_one(Measurement, measurement_id).device_id = device
                case = session.query(Case).filter(Case.name == "a", Case.version == "v1").one_or_none()
                case = case or Case(name="a", version="v1", group="g", definition={})
                session.add(case)
                session.flush()
                when = utc_now() - timedelta(days=days)
                row = Verdict(measurement_id=measurement_id, case_id=case.id, verdict=verdict, judged_at=when, **values)
                session.add(row)

    def usual(self, uuid: str) -> dict[tuple[str, str], CaseHistory]:
        """Return what the measurement that begins now is told."""
        with self.database.reading() as session:
            return usual_cases(session, self.now, uuid)


@pytest.fixture
def past(database: Database, tmp_path: Path) -> Past:
    return Past(database, tmp_path)


def test_a_case_version_has_its_usual_on_the_device_whichever_worker_had_it(past: Past) -> None:
    past.verdicts(past.device("one", "CPU-1"), 3)
    past.verdicts(past.device("two", "CPU-1"), 2, verdict="regressed")
    usual = past.usual("CPU-1")
    assert set(usual) == {("a", "v1")}
    assert usual["a", "v1"].pair_sd == pytest.approx(0.00158, rel=0.01)
    assert (usual["a", "v1"].clock_top, usual["a", "v1"].scatter) == (1980.0, pytest.approx(0.005))
    assert past.usual("CPU-2") == {}


@pytest.mark.parametrize("changes", [{"verdict": "throttled"}, {"verdict": "environment"}, {"days": 31}, {"days": -1}])
def test_what_is_not_believed_too_old_or_later_does_not_count(past: Past, changes: dict[str, object]) -> None:
    device = past.device("one", "CPU-1")
    past.verdicts(device, 4)
    past.verdicts(device, 3, **changes)  # type: ignore[arg-type]
    assert past.usual("CPU-1") == {}
