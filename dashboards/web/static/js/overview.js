// Overview: one row per case and device class, and the newest jobs.

import { get } from "./api.js";
import { changeMark } from "./changes.js";
import { breakable, byId, element, empty, failure, loading, show } from "./dom.js";
import { ago, interval, percent, plural, quantity, shortSha, stamp } from "./format.js";
import { jobLine } from "./job_line.js";
import { sparkline } from "./spark.js";
import { table } from "./table.js";
import { countVerdicts, forestMark, forestReach, verdictBadge } from "./verdict.js";

const RECENT = 6;
const query = new URLSearchParams(location.search);
const state = { rows: [], verdict: query.get("verdict"), text: query.get("filter") ?? "" };

async function start() {
  const filter = byId("filter");
  filter.value = state.text;
  filter.addEventListener("input", () => {
    state.text = filter.value;
    render();
  });
  await Promise.all([loadCases(), loadJobs()]);
}

async function loadCases() {
  const body = byId("cases-body");
  loading(body);
  try {
    const { rows } = await get("/overview");
    state.rows = rows.map((row) => ({
      ...row,
      verdict: row.last_verdict,
      effect: row.last_effect,
      interval_low: row.last_interval_low,
      interval_high: row.last_interval_high,
    }));
    render();
  } catch (error) {
    failure(body, error, "The overview could not be loaded");
  } finally {
    byId("cases").setAttribute("aria-busy", "false");
  }
}

async function loadJobs() {
  const body = byId("recent-body");
  loading(body);
  try {
    const { items } = await get("/jobs", { limit: RECENT });
    if (items.length) show(body, ...items.slice(0, RECENT).map(jobLine));
    else empty(body, "No jobs yet");
  } catch (error) {
    failure(body, error, "The jobs could not be loaded");
  }
}

function render() {
  remember();
  const body = byId("cases-body");
  if (state.rows.length === 0) {
    welcome(body);
    return;
  }
  renderCounts();
  const rows = state.rows.filter(matches);
  byId("cases-note").textContent =
    rows.length === state.rows.length
      ? plural(rows.length, "series", "series")
      : `${rows.length} of ${state.rows.length} series`;
  if (rows.length)
    show(
      body,
      element(
        "div",
        { class: "table-box" },
        table(columns(rows), rows, "Last value and verdict per case and device class"),
      ),
    );
  else empty(body, "Nothing matches", element("p", { text: "Clear the filter to see every case." }));
}

function welcome(body) {
  empty(
    body,
    "Nothing has been measured yet",
    element("p", {
      text: "Send a commit of a registered repository, or let the demo measure two commits of this one:",
    }),
    element("pre", { class: "command welcome", text: "s2bench submit HEAD --wait\ns2bench demo" }),
  );
}

function renderCounts() {
  const chips = countVerdicts(state.rows).map(([verdict, count]) => {
    const pressed = state.verdict === verdict;
    const badge = verdictBadge(verdict);
    badge.prepend(element("span", { class: "strong", text: String(count) }));
    const chip = element(
      "button",
      { type: "button", class: `chip tone-${verdict}`, "aria-pressed": String(pressed) },
      badge,
    );
    chip.addEventListener("click", () => {
      state.verdict = pressed ? null : verdict;
      render();
      byId("counts").querySelector(`.tone-${verdict}`)?.focus();
    });
    return chip;
  });
  show(byId("counts"), ...chips);
}

function matches(row) {
  const text = state.text.trim().toLowerCase();
  const hay = [row.case, row.device_class, row.repository, row.last_commit, row.last_subject].join(" ").toLowerCase();
  return (!state.verdict || row.verdict === state.verdict) && text.split(/\s+/).every((word) => hay.includes(word));
}

function columns(rows) {
  const reach = forestReach(rows);
  const several = new Set(rows.map((row) => row.repository)).size > 1;
  return [
    {
      label: "Case",
      cell: (row) => element("a", { class: "case", href: `/series/${row.series_id}` }, breakable(row.case)),
    },
    {
      label: "Device",
      kind: "half",
      cell: (row) =>
        element(
          "div",
          { class: "small" },
          row.device_class,
          several ? element("div", { class: "sub", text: row.repository }) : null,
        ),
    },
    { label: "Trend", kind: "half", cell: trend },
    { label: "Last value", kind: "num value half", cell: (row) => quantity(row.last_value, row.unit) },
    {
      label: "Verdict",
      kind: "half",
      cell: (row) =>
        row.verdict ? verdictBadge(row.verdict) : element("span", { class: "muted small", text: "no verdict" }),
    },
    { label: "Effect", cell: (row) => effectCell(row, reach) },
    { label: "Last commit", cell: commitCell },
  ];
}

function trend(row) {
  const line = sparkline(
    row.sparkline,
    `${plural(row.sparkline.length, "value")}, last ${quantity(row.last_value, row.unit)}`,
  );
  return row.open_change ? element("div", {}, line, changeMark(row.open_change, `/series/${row.series_id}`)) : line;
}

function effectCell(row, reach) {
  if (row.effect === null || row.effect === undefined) return null;
  const text = element(
    "div",
    { class: "nowrap" },
    element("div", { class: "strong", text: percent(row.effect) }),
    row.interval_low === null
      ? null
      : element("div", { class: "sub", text: interval(row.interval_low, row.interval_high) }),
  );
  return element("div", { class: "effect" }, text, forestMark(row, reach));
}

function commitCell(row) {
  if (!row.last_commit) return null;
  const sha = shortSha(row.last_commit);
  const link = row.last_job_id
    ? element("a", { class: "mono", href: `/jobs/${row.last_job_id}`, text: sha })
    : element("span", { class: "mono", text: sha });
  const when = element("time", {
    class: "sub",
    datetime: row.last_at,
    title: stamp(row.last_at),
    text: ` ${ago(row.last_at)}`,
  });
  return element(
    "div",
    { class: "commit" },
    link,
    when,
    row.last_subject
      ? element("div", { class: "sub ellipsis subject", title: row.last_subject, text: row.last_subject })
      : null,
  );
}

/** The address says what is shown, so that it can be sent to somebody. */
function remember() {
  const shown = new URLSearchParams();
  if (state.verdict) shown.set("verdict", state.verdict);
  if (state.text) shown.set("filter", state.text);
  history.replaceState(null, "", shown.size ? `?${shown}` : location.pathname);
}

start();
