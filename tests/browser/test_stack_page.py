"""The page of a stack in a real browser: a table per case, the oldest commit first, the whole in the last line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy.orm import Session

from service.models import Attribution, Job, JobEvent, JobKind, Measurement, State, Verdict, utc_now

Ask = Callable[[str], Any]
Site = Any  # of conftest.py, which cannot be imported


@pytest.fixture(scope="module")
def stack_job(site: Site) -> UUID:
    """A finished stack of the newest three commits: one slower, one that does not build, one with a hostile subject."""
    made: list[UUID] = []

    def work(session: Session) -> None:
        commits = site.commits[-4:]
        job = Job(
            repository_id=commits[0].repository_id,
            kind=JobKind.STACK,
            requested_commit="topic",
            requested_baseline="auto",
            commit_sha=commits[-1].sha,
            baseline_sha=commits[0].sha,
            devices=["cpu"],
            cases="cpu/*",
            policy={"max_pairs": 8},
            state=State.DONE,
            body_sha256="0" * 64,
            finished_at=utc_now(),
        )
        session.add(job)
        session.flush()
        ends = {"candidate_id": commits[-1].id, "baseline_id": commits[0].id, "finished_at": utc_now()}
        measurement = Measurement(job_id=job.id, device_class="cpu", state=State.DONE, **ends)
        session.add(measurement)
        session.flush()
        add_rows(session, site, measurement, commits)
        session.add(JobEvent(job_id=job.id, measurement_id=None, kind="end", payload={"state": "done"}))
        made.append(job.id)

    site.write(work)
    return made[0]


def add_rows(session: Session, site: Site, measurement: Measurement, commits: list[Any]) -> None:
    numbers = {"before": 2.0, "after": 2.2, "effect": 0.1, "interval_low": 0.09, "interval_high": 0.11}
    flat = {"before": 2.2, "after": 2.2, "effect": 0.0, "interval_low": -0.01, "interval_high": 0.01}
    combined = [{"code": "combined", "detail": "together with what does not build"}]
    said: list[tuple[str, dict[str, float], list[Any]]] = [
        ("regressed", numbers, []),
        ("failed", {}, [{"code": "build_failed", "detail": "<b>no</b>"}]),
        ("unchanged", flat, combined),
    ]
    for name in site.case_names[:2]:
        keys = {"measurement_id": measurement.id, "case_id": site.cases[name]}
        common = keys | {"unit": "ms", "pairs_used": 8, "pairs_rejected": 0}
        for position, (verdict, values, reasons) in enumerate(said, 1):
            ends = {"commit_id": commits[position].id, "baseline_id": commits[position - 1].id}
            row = Attribution(**common, **values, **ends, position=position, verdict=verdict, reasons=reasons)
            session.add(row)
        whole = {"verdict": "regressed", "reasons": [], "evidence": {}, "judged_at": utc_now()}
        session.add(Verdict(**common, **numbers, **whole))


def test_a_stack_is_shown_commit_by_commit(
    site: Site, page: Page, answer: Ask, stack_job: UUID, tmp_path: Path
) -> None:
    page.goto(f"{site.url}/jobs/{stack_job}")
    tables = page.locator("#commits table")
    expect(tables).to_have_count(2)
    rows = tables.first.locator("tbody tr")
    expect(rows).to_have_count(4)
    expected = answer(f"/jobs/{stack_job}/attribution")["rows"][:3]
    for index, row in enumerate(expected):
        expect(rows.nth(index)).to_contain_text(row["commit"][:8])
        expect(rows.nth(index)).to_contain_text(row["verdict"])
    expect(rows.nth(0)).to_contain_text("+10.0")
    expect(rows.nth(1)).to_contain_text("<b>no</b>")
    expect(rows.nth(2)).to_contain_text(site.hostile)
    expect(rows.nth(3)).to_contain_text("all")
    expect(page.locator("#verdicts-body tbody tr")).to_have_count(2)
    expect(page.locator(".step").filter(has_text="Rounds")).to_have_count(1)
    expect(page.locator(".step").filter(has_text="Profile")).to_have_count(0)
    expect(page.locator("#job-facts")).to_contain_text("Rounds")
    assert page.title() != "owned"
    assert page.locator("main img, main b").count() == 0
    page.screenshot(path=tmp_path / "stack.png", full_page=True)


def test_a_comparison_has_no_commits(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/jobs/{site.jobs['done']}")
    expect(page.locator("#verdicts-body tbody tr")).to_have_count(len(site.case_names))
    expect(page.locator("#commits")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_stack_on_a_phone(site: Site, page: Page, stack_job: UUID, scheme: Any, tmp_path: Path) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{site.url}/jobs/{stack_job}")
    expect(page.locator("#commits table")).to_have_count(2)
    widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1]
    page.screenshot(path=tmp_path / f"stack-{scheme}.png", full_page=True)
