"""The pages in a real browser: what they show, that they stay quiet, and that hostile text stays text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from service.models import State

Ask = Callable[[str], Any]
Site = Any  # of conftest.py, which cannot be imported

POINTS_IN_SVG = """(id) => Object.fromEntries(document.getElementById(id).calcdata.map(([first]) => [
  first.trace.name, first.node3 ? first.node3.selectAll('path.point').size() : 0]))"""


POSITION_OF_TRACE = """(name) => document.getElementById('trend').data
  .filter((trace) => trace.x.length).findIndex((trace) => trace.name === name)"""


def no_overflow(page: Page) -> None:
    widths = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1], f"{page.url} is {widths[0]} px wide in a window of {widths[1]} px"


def nothing_ran(page: Page) -> None:
    """Assert that the hostile subject became neither markup nor code."""
    assert page.title() != "owned"
    assert page.locator("main img, main b").count() == 0


def traces(page: Page, plot: str) -> dict[str, int]:
    """Return how many marks the traces of a plot have in its SVG, by name."""
    page.locator(f"#{plot} .scatterlayer").first.wait_for()
    counts: dict[str, int] = page.evaluate(POINTS_IN_SVG, plot)
    return counts


def point_of(page: Page, trace: str, index: int = 0) -> Locator:
    position = page.evaluate(
        "(name) => document.getElementById('trend').data.filter((t) => t.x.length).findIndex((t) => t.name === name)",
        trace,
    )
    return page.locator("#trend .scatterlayer .trace").nth(position).locator("path.point").nth(index)


def test_overview(site: Site, page: Page, answer: Ask, tmp_path: Path) -> None:
    page.goto(site.url)
    rows = page.locator("#cases-body tbody tr")
    expect(rows).to_have_count(len(site.case_names))
    asked = answer("/overview")["rows"]
    for index, row in enumerate(asked):
        shown = rows.nth(index)
        expect(shown).to_contain_text(row["case"])
        expect(shown).to_contain_text(f"{row['last_value']:#.4g} {row['unit']}")
        expect(shown.locator(".badge")).to_have_text(row["last_verdict"])
        expect(shown.locator("svg.spark path")).to_have_count(1)
        expect(shown).to_contain_text(site.hostile)
    worst = rows.filter(has_text=site.case_names[0])
    expect(worst).to_contain_text("+10.00 %")
    expect(worst).to_contain_text("+9.70 … +10.30 %")
    expect(page.locator(".job-line").first).to_contain_text(site.hostile)
    nothing_ran(page)
    no_overflow(page)
    page.screenshot(path=tmp_path / "overview.png", full_page=True)


def test_overview_is_filtered_by_keyboard_and_keeps_it_in_the_address(site: Site, page: Page) -> None:
    page.goto(site.url)
    page.get_by_role("button", name=re.compile("regressed")).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#cases-body tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"\?verdict=regressed$"))
    page.reload()
    expect(page.locator("#cases-body tbody tr")).to_have_count(1)
    page.get_by_role("searchbox").fill("nothing like this")
    expect(page.locator("#cases-body")).to_contain_text("Nothing matches")


def test_overview_without_data_says_how_to_get_some(site: Site, page: Page) -> None:
    page.route("**/api/v1/overview", lambda route: route.fulfill(json={"rows": []}))
    page.goto(site.url)
    expect(page.locator("#cases-body")).to_contain_text("s2bench submit HEAD --wait")
    expect(page.locator("#cases-body")).to_contain_text("s2bench demo")


def test_series(site: Site, page: Page, answer: Ask, tmp_path: Path) -> None:
    series = site.series[site.case_names[0]]
    page.goto(f"{site.url}/series/{series}")
    counts = traces(page, "trend")
    assert (counts["ok"], counts["throttled"], counts["sparse"]) == (len(site.commits) - 3, 1, 1)
    assert counts["regressed"] == 2
    assert point_of(page, "throttled").evaluate("(mark) => getComputedStyle(mark).fill") == "none"
    assert point_of(page, "ok").evaluate("(mark) => getComputedStyle(mark).fill") != "none"
    points = answer(f"/series/{series}/points")["points"]
    expect(page.locator("#points-body tbody tr")).to_have_count(len(points))
    expect(page.locator("#trend .ytitle")).to_have_text("time (ms)")

    point_of(page, "ok", len(site.commits) - 4).hover(force=True)
    card = page.locator("#trend .tip")
    last = points[-1]
    expect(card.locator(".title")).to_have_text(site.hostile)
    for text in (
        last["commit"][:9],
        f"{last['value']:#.4g} ms",
        "regressed +10.00 %",
        "Ada <b>Lovelace</b>",
        "torch 2.13.0",
    ):
        expect(card).to_contain_text(text)
    point_of(page, "throttled").hover(force=True)
    expect(card).to_contain_text("throttled")
    nothing_ran(page)
    page.screenshot(path=tmp_path / "series.png", full_page=True)


def test_change_points_are_drawn_and_listed(site: Site, page: Page, answer: Ask, tmp_path: Path) -> None:
    series = site.series[site.case_names[0]]
    page.goto(f"{site.url}/series/{series}")
    traces(page, "trend")
    lines = page.locator("#trend .shapelayer path")
    # the lane of verdicts, three changes that hold, and the commits of the one that names none
    expect(lines).to_have_count(5)
    dashes = [line.evaluate("(path) => getComputedStyle(path).strokeDasharray") for line in lines.all()]
    assert len(set(dashes)) == 3
    for status in ("confirmed", "unconfirmed", "surroundings"):
        expect(page.locator("#trend-legend")).to_contain_text(f"change point, {status}")
    rows = page.locator("#changes-body tbody tr")
    expect(rows).to_have_count(4)
    confirmed = rows.filter(has_text="+10.00 %")
    expect(confirmed.locator(".badge").first).to_have_text("confirmed")
    expect(confirmed).to_contain_text("+9.70 … +10.30 %")
    expect(confirmed.get_by_role("link", name="its pairs")).to_have_attribute("href", f"/jobs/{site.jobs['done']}")
    found = answer(f"/series/{series}/change-points")["change_points"]
    (step,) = [one for one in found if one["effect"] == 0.1]
    link = confirmed.get_by_role("link", name=step["commit"][:9])
    expect(link).to_have_attribute(
        "href", f"/compare?repository=s2bench&base={step['low_commit']}&head={step['commit']}"
    )
    expect(rows.filter(has_text="drift")).to_contain_text("+2.30 %")
    expect(rows.filter(has_text="unconfirmed")).to_contain_text("after ")
    note = page.get_by_role("link", name="A job is looking for a change")
    expect(note).to_have_attribute("href", f"/jobs/{site.jobs['queued']}")
    page.get_by_role("button", name="By date").click()
    expect(lines).to_have_count(5)
    nothing_ran(page)
    no_overflow(page)
    page.screenshot(path=tmp_path / "changes.png", full_page=True)
    page.goto(f"{site.url}/series/{site.series[site.case_names[1]]}")
    expect(page.locator("#changes-body")).to_contain_text("No change points")
    page.goto(site.url)
    mark = page.locator("#cases-body tr").filter(has_text=site.case_names[0]).locator(".change-mark")
    expect(mark).to_have_text(f"+10.0 % at {step['commit'][:9]}")
    expect(mark).to_have_attribute("href", f"/series/{series}")
    expect(page.locator(".change-mark")).to_have_count(1)


def test_series_view_is_in_the_address(site: Site, page: Page, answer: Ask) -> None:
    series = site.series[site.case_names[0]]
    page.goto(f"{site.url}/series/{series}")
    traces(page, "trend")
    box = page.locator("#trend .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.52, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.98, box["y"] + box["height"] / 2, steps=8)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"from=[0-9a-f]{9}&to=[0-9a-f]{9}"))
    shown = page.evaluate("document.getElementById('trend').layout.xaxis.range")
    page.reload()
    traces(page, "trend")
    again = page.evaluate("document.getElementById('trend').layout.xaxis.range")
    assert again == pytest.approx(shown, abs=1)
    page.get_by_role("button", name="By date").click()
    page.get_by_role("button", name="From zero").click()
    expect(page).to_have_url(re.compile(r"\?x=date&y=zero$"))
    page.reload()
    traces(page, "trend")
    assert page.evaluate("document.getElementById('trend').layout.yaxis.range")[0] == 0
    with page.expect_download() as saved:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(saved.value.path().read_text())))
    points = answer(f"/series/{series}/points")["points"]
    assert [float(row["value"]) for row in rows] == [point["value"] for point in points]


def test_series_follows_the_color_scheme(site: Site, page: Page, tmp_path: Path) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(f"{site.url}/series/{site.series[site.case_names[0]]}")
    traces(page, "trend")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    ink = page.locator("#trend .ytitle").evaluate("(title) => getComputedStyle(title).fill")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("#trend .ytitle")).not_to_have_css("fill", ink)
    assert page.evaluate(background) != light
    page.screenshot(path=tmp_path / "series-dark.png", full_page=True)
    page.emulate_media(color_scheme="light")


def test_unknown_series_is_told_in_words(site: Site, page: Page, complaints: list[str]) -> None:
    page.goto(f"{site.url}/series/00000000-0000-7000-8000-000000000000")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("This series could not be loaded")
    expect(alert).to_contain_text("expected the id of a series")
    page.wait_for_load_state("networkidle")  # all complaints have come
    assert any("404" in line for line in complaints)
    complaints.clear()


def test_silent_server_is_told_in_words(site: Site, page: Page, complaints: list[str]) -> None:
    def refuse(route: Route) -> None:
        route.abort()

    page.route("**/api/v1/overview", refuse)
    page.goto(site.url)
    expect(page.locator("#cases-body").get_by_role("alert")).to_contain_text("The server does not answer")
    page.wait_for_load_state("networkidle")
    complaints.clear()


def test_compare(site: Site, page: Page, answer: Ask, tmp_path: Path) -> None:
    base, head = (commit.sha for commit in site.commits[-2:])
    query = f"repository=s2bench&base={base}&head={head}"
    page.goto(f"{site.url}/compare?{query}")
    counts = traces(page, "effects")
    assert counts == {"regressed": 1, "unchanged": 2}
    for name in site.case_names:
        expect(page.locator("#effects .annotation-text").filter(has_text=name)).to_have_count(1)
    rows = answer(f"/compare?{query}")["rows"]
    table = page.locator("#table-body tbody tr")
    expect(table).to_have_count(len(rows))
    expect(table.first).to_contain_text("regressed")
    expect(table.first).to_contain_text("+10.00 %")

    counts = traces(page, "samples")
    assert counts["samples A"] == counts["samples B"] == site.pairs * site.samples
    assert counts["median A"] == counts["median B"] == site.pairs
    page.get_by_text(f"Medians of {site.pairs} pairs").click()
    medians = page.locator("#samples-table tbody tr")
    expect(medians).to_have_count(site.pairs)
    expect(medians.nth(3)).to_contain_text("rejected: steal time")
    page.screenshot(path=tmp_path / "compare.png", full_page=True)

    page.locator("#samples-case").select_option(label=site.case_names[2])
    expect(page).to_have_url(re.compile(r"case="))
    page.get_by_role("button", name="Copy as Markdown").click()
    expect(page.get_by_role("status").filter(has_text="clipboard")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied[0] == "| case | before | after | delta | interval | verdict |"
    assert copied[2].startswith(f"| {site.case_names[0]} | ")
    assert copied[2].endswith(" | +10.00 % | +9.70 … +10.30 % | regressed |")
    nothing_ran(page)


def test_compare_of_what_was_never_measured_together(site: Site, page: Page) -> None:
    query = f"repository=s2bench&base={site.commits[0].sha}&head={site.commits[5].sha}"
    page.goto(f"{site.url}/compare?{query}")
    expect(page.locator("#answer")).to_contain_text("never measured against each other")
    expect(page.locator("#result")).to_be_hidden()


def test_finished_and_failed_jobs(site: Site, page: Page, tmp_path: Path) -> None:
    page.goto(f"{site.url}/jobs")
    page.get_by_role("link", name="csrc: gather dk and dv by key owner").first.wait_for()
    page.get_by_role("button", name="Failed").click()
    expect(page.locator(".job-line")).to_have_count(1)
    page.locator(".job-line a").click()
    expect(page.get_by_role("alert")).to_contain_text("build_failed, at build")
    expect(page.get_by_role("alert")).to_contain_text("<b>1 error</b>")
    expect(page.locator(".step").filter(has_text="Build")).to_contain_text("failed")
    page.screenshot(path=tmp_path / "job-failed.png", full_page=True)

    page.goto(f"{site.url}/jobs/{site.jobs['done']}")
    expect(page.locator("h1")).to_have_text(site.hostile)
    expect(page.locator("#verdicts-body tbody tr")).to_have_count(len(site.case_names))
    expect(page.locator("button.pair.admitted")).to_have_count(site.pairs - 1)
    expect(page.locator("button.pair.rejected")).to_have_attribute("title", re.compile(r"Pair 3 .*steal time"))
    expect(page.locator(".step.tone-done")).to_have_count(6)
    nothing_ran(page)
    page.screenshot(path=tmp_path / "job-done.png", full_page=True)


def test_job_shows_its_kernels_before_and_after(site: Site, page: Page, answer: Ask, tmp_path: Path) -> None:
    page.goto(f"{site.url}/jobs/{site.jobs['done']}")
    rows = page.locator("#kernels tbody tr")
    asked = answer(f"/measurements/{site.measurements['done']}/kernels")["rows"]
    expect(rows).to_have_count(len(asked))
    gather = rows.nth(0)
    for text in (
        site.case_names[0],
        "void s2attn::gather<float, 64>(Problem)",
        "2.000 ms",
        "2.200 ms",
        "+10.00 %",
        "72 → 96",
        "0 B → 48 B",
        "32 B stored",
        "44 % → 31 %",
        "by registers",
        "18432 B",
        "dram bytes 1.235e+8",
    ):
        expect(gather).to_contain_text(text)
    expect(rows.filter(has_text="s2attn::combine")).to_contain_text("new")
    expect(rows.filter(has_text="s2attn::fill")).to_contain_text("gone")
    expect(rows.filter(has_text="Memset")).to_contain_text("memset")
    expect(rows.filter(has_text="scatter<b>")).to_contain_text("100.0 % of the case · 2 launches")
    expect(page.locator("#kernels")).to_contain_text("One profiled run of each commit, 10 calls per case")
    expect(page.locator("#kernels")).to_contain_text("Hardware counters of 1 case only: the time")
    with page.expect_download() as saved:
        page.locator("#kernels").get_by_role("link", name="CSV").click()
    read = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
    assert [(row["case"], row["kernel"]) for row in read] == [(row["case"], row["kernel"]) for row in asked]
    assert (read[0]["before_registers"], read[0]["after_registers"]) == ("72", "96")
    nothing_ran(page)
    no_overflow(page)
    page.locator("#kernels").screenshot(path=tmp_path / "kernels.png")
    page.set_viewport_size({"width": 390, "height": 844})
    no_overflow(page)
    page.locator("#kernels").screenshot(path=tmp_path / "kernels-phone.png")


def test_a_profile_that_is_missing_says_why_and_jobs_without_one_show_nothing(site: Site, page: Page) -> None:
    reason = {"status": "failed", "reason": "no end within 180 s", "source": None, "calls": None, "wall_s": 180.0}
    older = {
        **reason,
        "arm": "A",
        "commit": "a",
        "status": "unsupported",
        "reason": "the commit has no profile command",
    }
    counters = {"counters_cases": None, "counters_reason": None}
    profiles = [older | counters, {**reason, "arm": "B", "commit": "b"} | counters]
    page.route("**/kernels", lambda route: route.fulfill(json={"profiles": profiles, "rows": []}))
    page.goto(f"{site.url}/jobs/{site.jobs['done']}")
    expect(page.locator("#kernels")).to_contain_text("After: profile failed, no end within 180 s.")
    expect(page.locator("#kernels")).to_contain_text("Before: not profiled, the commit has no profile command.")
    page.unroute("**/kernels")
    page.goto(f"{site.url}/jobs/{site.jobs['failed']}")
    expect(page.locator("#job-facts")).to_contain_text("Commit")
    expect(page.locator("#kernels")).to_be_hidden()


def test_job_is_live(site: Site, page: Page, complaints: list[str], tmp_path: Path) -> None:
    page.goto(f"{site.url}/jobs/{site.jobs['live']}")
    expect(page.locator("#job-live")).to_have_text("live")
    expect(page.locator(".step.tone-running")).to_contain_text("Build")
    page.evaluate("window.sameDocument = true")

    site.tell("live", "log", {"text": "[4/4] link <script>alert(1)</script>"})
    expect(page.locator("#log")).to_have_text("[4/4] link <script>alert(1)</script>")
    site.tell(
        "live", "stage", {"state": "measuring", "stage": "pairs", "detail": ""}, state=State.MEASURING, stage="pairs"
    )
    expect(page.locator(".step.tone-running")).to_contain_text("Pairs")
    site.tell("live", "pair", {"pair": 0, "order": "AB", "admitted": dict.fromkeys(site.case_names, True)})
    expect(page.locator("button.pair.admitted")).to_have_count(1)
    site.tell("live", "pair", {"pair": 1, "order": "BA", "admitted": dict.fromkeys(site.case_names, False)})
    expect(page.locator("button.pair.rejected")).to_have_count(1)
    page.screenshot(path=tmp_path / "job-live.png", full_page=True)
    expect(page.locator("#measurements")).not_to_contain_text("Canaries")
    confirming = {"state": "measuring", "stage": "confirm", "detail": ""}
    site.tell("live", "stage", confirming, state=State.MEASURING, stage="confirm")
    expect(page.locator(".step.tone-running")).to_contain_text("Confirm")
    site.tell("live", "pair", {"pair": 2, "order": "AB", "admitted": {site.case_names[0]: True}})
    expect(page.get_by_role("list", name="Fresh pairs").locator("button.pair.admitted")).to_have_count(1)
    expect(page.get_by_role("list", name="Pairs measured so far").locator("li")).to_have_count(2)
    expect(page.locator("#measurements")).to_contain_text("1 fresh pair")
    expect(page.locator("#measurements")).to_contain_text("Canaries (the same code in both arms): gemm")
    page.screenshot(path=tmp_path / "job-confirming.png", full_page=True)

    site.stop_server()
    expect(page.locator("#job-live")).to_have_text("connection lost, trying again")
    site.tell("live", "log", {"text": "said while nobody heard"})
    site.start_server()
    heard = "[4/4] link <script>alert(1)</script> said while nobody heard"  # each of them once
    expect(page.locator("#log")).to_have_text(heard, timeout=15_000)
    expect(page.locator("#job-live")).to_have_text("live")
    expect(page.locator("button.pair")).to_have_count(3)
    complaints.clear()

    site.finish("live")
    expect(page.locator("#verdicts-body tbody tr")).to_contain_text("regressed")
    expect(page.locator("#job-tools .badge")).to_have_text("done")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert page.evaluate("window.sameDocument"), "the page was loaded again"


def test_queued_job_is_canceled(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/jobs/{site.jobs['queued']}")
    expect(page.get_by_text("No live worker serves this device class")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#job-tools .badge")).to_have_text("canceled")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone(site: Site, page: Page, tmp_path: Path, scheme: str) -> None:
    base, head = (commit.sha for commit in site.commits[-2:])
    paths = {
        "overview": "/",
        "series": f"/series/{site.series[site.case_names[0]]}",
        "compare": f"/compare?repository=s2bench&base={base}&head={head}",
        "jobs": "/jobs",
        "job": f"/jobs/{site.jobs['done']}",
        "alerts": "/alerts?state=",
        "alert": f"/alerts/{site.alert_id}",
    }
    ready = {
        "overview": "tbody tr",
        "series": "#trend path.point",
        "compare": "#samples path.point",
        "jobs": ".job-line",
        "alerts": ".job-line",
        "alert": "#cases-body tbody tr",
    }
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 844})
    for name, path in paths.items():
        page.goto(f"{site.url}{path}")
        page.locator(ready.get(name, ".job-line, #verdicts-body tbody tr")).first.wait_for()
        no_overflow(page)
        page.screenshot(path=tmp_path / f"{name}-phone-{scheme}.png", full_page=True)
    page.emulate_media(color_scheme="light")


def test_throttled_and_sparse_commits_are_marked_in_the_table(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/series/{site.series[site.case_names[0]]}")
    for sha, status in ((site.throttled, "throttled"), (site.sparse, "sparse")):
        row = page.locator("#points-body tbody tr").filter(has_text=sha[:9])
        expect(row).to_contain_text(status)


def test_alerts(site: Site, page: Page, answer: Ask, tmp_path: Path) -> None:
    page.goto(f"{site.url}/alerts?state=")
    line = page.locator(".job-line")
    expect(line).to_have_count(1)
    expect(line).to_contain_text("cpu.forward: slower, +10.00 % at most")
    expect(line).to_contain_text(site.hostile)
    nothing_ran(page)
    page.screenshot(path=tmp_path / "alerts.png", full_page=True)
    line.get_by_role("link", name=re.compile("slower")).click()
    expect(page.locator("#cases-body tbody tr")).to_contain_text(site.case_names[1])
    expect(page.locator("#events-body tbody tr")).to_contain_text(site.hostile)
    expect(page.locator("#alert-change")).to_contain_text(site.hostile)
    nothing_ran(page)
    page.screenshot(path=tmp_path / "alert.png", full_page=True)


def test_an_alert_is_acknowledged_by_keyboard_and_needs_a_reason(
    site: Site, page: Page, answer: Ask, complaints: list[str]
) -> None:
    page.goto(f"{site.url}/alerts/{site.alert_id}")
    page.get_by_label("State").select_option("acknowledged")
    page.get_by_label("Reason").fill("")
    page.get_by_label("Reason").press("Enter")
    expect(page.locator("#alert-problem")).to_contain_text("why it is acknowledged")
    assert any("422" in line for line in complaints)
    complaints.clear()
    page.get_by_label("Reason").fill("known since Monday")
    page.get_by_label("Assignee").fill("ada")
    page.get_by_label("Assignee").press("Enter")
    expect(page.locator("#alert-state")).to_have_text("acknowledged")
    expect(page.locator("#events-body tbody tr")).to_have_count(3)
    stored = answer(f"/alerts/{site.alert_id}")
    assert (stored["state"], stored["reason"], stored["assignee"]) == ("acknowledged", "known since Monday", "ada")
    page.goto(f"{site.url}/alerts")
    expect(page.locator("#alerts-body")).to_contain_text("No alert is open")
