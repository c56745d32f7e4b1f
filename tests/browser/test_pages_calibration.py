"""The page of calibrations: loud about a false alarm, silent about what is not known."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.models import Calibration, Job, Measurement, Repository, State, Verdict, utc_now

Ask = Callable[[str], Any]
Site = Any  # of conftest.py, which cannot be imported
FOUND = (("unchanged", 0.0004), ("regressed", 0.012), ("inconclusive", 0.02))


def calibrate(session: Session, site: Site) -> None:
    """Add a job of the last commit against itself: one case unchanged, one called slower, one undecided."""
    sha = site.commits[-1].sha
    job = Job(
        repository_id=session.execute(select(Repository.id)).scalar_one(),
        requested_commit=sha,
        requested_baseline=sha,
        commit_sha=sha,
        baseline_sha=sha,
        devices=["cpu"],
        cases="*",
        policy={"max_pairs": 12},
        state=State.DONE,
        body_sha256="",
        created_at=utc_now() - timedelta(days=30),
    )
    session.add(job)
    session.flush()
    commit_id = site.commits[-1].id
    measurement = Measurement(
        job_id=job.id, device_class="cpu", state=State.DONE, candidate_id=commit_id, baseline_id=commit_id
    )
    session.add(measurement)
    session.flush()
    for (name, series_id), (verdict, effect) in zip(site.series.items(), FOUND, strict=True):
        row = Verdict(
            measurement_id=measurement.id,
            case_id=site.cases[name],
            verdict=verdict,
            reasons=[],
            unit="ms",
            effect=effect,
            interval_low=effect - 0.003,
            interval_high=effect + 0.003,
            minimum_detectable_effect=0.007,
            pairs_used=12,
            pairs_rejected=0,
            evidence={},
            judged_at=utc_now() - timedelta(days=8),
        )
        session.add(row)
        session.flush()
        session.add(Calibration(verdict_id=row.id, series_id=series_id, scatter=0.0021))


@pytest.fixture(scope="module")
def calibrated(site: Site) -> Site:
    site.write(lambda session: calibrate(session, site))
    return site


def no_overflow(page: Page) -> None:
    widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1], f"{page.url} is {widths[0]} px wide in a window of {widths[1]} px"


def test_the_rates_and_a_false_alarm(calibrated: Site, page: Page, answer: Ask, tmp_path: Path) -> None:
    page.goto(calibrated.url)
    page.get_by_role("link", name="Calibration").click()
    expect(page).to_have_url(re.compile("/calibration$"))
    expect(page.locator("nav a[aria-current=page]")).to_have_text("Calibration")
    alarm = page.get_by_role("alert", name="False alarms")
    expect(alarm).to_contain_text("1 false alarm: identical code was called a change")
    expect(alarm).to_contain_text("+1.20 % (+0.90 … +1.50 %)")
    (told,) = answer("/calibration")["false_alarms"]
    expect(alarm.get_by_role("link")).to_have_attribute("href", f"/jobs/{told['job_id']}")
    rows = page.locator("#rates-body tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("1 of 2")
    expect(rows.first).to_contain_text("50.00 % (1.26 % … 98.74 %)")
    expect(rows.first).to_contain_text("0.21 %")
    expect(rows.first).to_contain_text("0.70 %")
    expect(rows.first).to_contain_text("1 inconclusive")
    series = page.locator("#series-body tbody tr")
    expect(series).to_have_count(3)
    undecided = series.filter(has_text=calibrated.case_names[2])
    expect(undecided).to_contain_text("0 of 0")
    expect(undecided).to_contain_text("no rate yet")
    assert page.locator("main b, main img").count() == 0
    no_overflow(page)
    page.screenshot(path=tmp_path / "calibration.png", full_page=True)


def test_csv_and_json(calibrated: Site, page: Page, answer: Ask) -> None:
    page.goto(f"{calibrated.url}/calibration")
    page.locator("#series-body tbody tr").first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    asked = answer("/calibration")["series"]
    assert [row["case"] for row in rows] == [one["case"] for one in asked]
    assert [row["rate"] for row in rows] == [
        "" if (rate := one["false_alarms"]["rate"]) is None else f"{rate:g}" for one in asked
    ]
    expect(page.get_by_role("link", name="JSON")).to_have_attribute("href", "/api/v1/calibration?days=90")


def test_a_time_without_calibrations_says_so_and_is_in_the_address(
    calibrated: Site, page: Page, tmp_path: Path
) -> None:
    page.goto(f"{calibrated.url}/calibration")
    page.locator("#series-body tbody tr").first.wait_for()
    page.get_by_role("button", name="7 days").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#rates-body")).to_contain_text("Nothing is known, which is not a rate of 0 %.")
    expect(page).to_have_url(re.compile(r"\?days=7$"))
    expect(page.locator("#series-rates")).to_be_hidden()
    expect(page.get_by_role("alert", name="False alarms")).to_have_count(0)
    page.screenshot(path=tmp_path / "calibration-empty.png", full_page=True)
    page.reload()
    expect(page.get_by_role("button", name="7 days")).to_have_attribute("aria-pressed", "true")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_and_dark(calibrated: Site, page: Page, tmp_path: Path, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(f"{calibrated.url}/calibration")
        page.locator("#series-body tbody tr").first.wait_for()
        page.screenshot(path=tmp_path / f"calibration-{width}-{scheme}.png", full_page=True)
        no_overflow(page)
    page.emulate_media(color_scheme="light")


def test_a_calibration_is_not_the_last_word_on_a_case(calibrated: Site, page: Page, answer: Ask) -> None:
    """The overview goes on to show what was found of a change."""
    rows = {row["case"]: row["last_verdict"] for row in answer("/overview")["rows"]}
    assert rows[calibrated.case_names[2]] == "unchanged"
    page.goto(f"{calibrated.url}/jobs/{answer('/calibration')['false_alarms'][0]['job_id']}")
    expect(page.locator("#verdicts-body tbody tr")).to_have_count(3)
