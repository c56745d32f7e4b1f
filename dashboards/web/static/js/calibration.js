// Calibration: false alarms on identical code, noise floor and detectable effect, by device class, group and series.

import { apiUrl, get } from "./api.js";
import { breakable, byId, choices, element, empty, failure, loading, show } from "./dom.js";
import { csvLink, jsonLink } from "./download.js";
import { ago, interval, percent, plural, stamp, words } from "./format.js";
import { table } from "./table.js";
import { SEVERITY, verdictBadge } from "./verdict.js";

const DECIDED = ["regressed", "improved", "unchanged"];
const SPANS = [
  ["7", "7 days"],
  ["90", "90 days"],
  ["3650", "All"],
];
const asked = new URLSearchParams(location.search).get("days");
const state = { days: SPANS.some(([days]) => days === asked) ? asked : "90", found: null };

async function start() {
  showTools();
  await reload();
}

function showTools() {
  const select = (days) => {
    state.days = days;
    history.replaceState(null, "", `?days=${days}`);
    showTools();
    reload();
  };
  show(
    byId("calibration-tools"),
    choices("Time", SPANS, state.days, select),
    csvLink("calibration.csv", CSV_COLUMNS, () => state.found?.series ?? []),
    jsonLink(apiUrl("/calibration", { days: state.days })),
  );
}

async function reload() {
  loading(byId("rates-body"));
  try {
    state.found = await get("/calibration", { days: state.days });
    render(state.found);
  } catch (error) {
    byId("series-rates").hidden = true;
    show(byId("false-alarms"));
    failure(byId("rates-body"), error, "The calibrations could not be loaded");
  } finally {
    byId("rates").setAttribute("aria-busy", "false");
  }
}

function render(found) {
  show(byId("false-alarms"), found.false_alarms.length ? falseAlarms(found.false_alarms) : null);
  byId("series-rates").hidden = found.series.length === 0;
  if (found.devices.length === 0) {
    byId("rates-note").textContent = "";
    empty(
      byId("rates-body"),
      "Nothing has been calibrated in this time",
      element("p", { text: "Nothing is known, which is not a rate of 0 %. Idle devices do it by themselves; or run" }),
      element("pre", { class: "command", text: "s2bench calibrate --jobs 3" }),
    );
    return;
  }
  byId("rates-note").textContent = `Jobs of ${span()}; intervals at 95 %`;
  const rows = found.devices.flatMap((device) => [
    { ...device, group: null },
    ...found.groups.filter((group) => group.device_class === device.device_class),
  ]);
  show(byId("rates-body"), box(table(RATE_COLUMNS, rows, "Rates by device class and kernel group")));
  show(byId("series-body"), box(table(SERIES_COLUMNS, found.series, "Rates by series")));
}

const span = () => (state.days === "3650" ? "all time" : `the last ${state.days} days`);
const box = (content) => element("div", { class: "table-box" }, content);
const unsigned = (ratio) => percent(ratio).replace("+", "");

/** As loud as it can be said: somebody has to look. */
function falseAlarms(alarms) {
  return element(
    "section",
    { class: "error", role: "alert", "aria-label": "False alarms" },
    element("h2", { text: `${plural(alarms.length, "false alarm")}: identical code was called a change` }),
    element("ul", {}, ...alarms.map(alarmLine)),
  );
}

const alarmLine = (alarm) =>
  element(
    "li",
    {},
    verdictBadge(alarm.verdict),
    " ",
    element("a", { class: "case", href: `/jobs/${alarm.job_id}` }, ...breakable(alarm.case)),
    element("span", {
      text: ` on ${alarm.device_class}: ${percent(alarm.effect)} (${interval(alarm.interval_low, alarm.interval_high)}), `,
    }),
    element("time", { datetime: alarm.judged_at, title: stamp(alarm.judged_at), text: ago(alarm.judged_at) }),
  );

function where(row) {
  if (row.group === null) return element("span", { class: "strong", text: row.device_class });
  return element("span", { class: "small muted", text: row.group });
}

function caseLink(row) {
  const name = breakable(row.case);
  const inner = row.series_id ? element("a", { href: `/series/${row.series_id}` }, ...name) : element("span", {}, ...name);
  inner.classList.add("case");
  return [inner, element("div", { class: "sub", text: `${row.device_class} · ${row.repository}` })];
}

/** Counts first: a rate of few verdicts says little, and one of none says nothing. */
function rateCell({ false_alarms: found }) {
  const count = element("span", { class: found.count ? "strong" : null, text: `${found.count} of ${found.trials}` });
  if (found.rate === null) return [count, element("div", { class: "sub", text: "no rate yet" })];
  const range = `${unsigned(found.rate)} (${unsigned(found.low)} … ${unsigned(found.high)})`;
  return [count, element("div", { class: "sub", text: range })];
}

function undecided(row) {
  const left = SEVERITY.filter((name) => !DECIDED.includes(name) && row.verdicts[name]);
  return left.map((name) => `${row.verdicts[name]} ${words(name)}`).join(", ");
}

const MEASURED = [
  { label: "False alarms", kind: "num half", cell: rateCell },
  { label: "Noise floor", kind: "num half", cell: (row) => unsigned(row.noise_floor) },
  { label: "Detectable", kind: "num half", cell: (row) => unsigned(row.minimum_detectable_effect) },
  { label: "Undecided", kind: "half", cell: undecided },
  { label: "Jobs", kind: "num half", cell: (row) => String(row.jobs) },
  {
    label: "Last",
    kind: "half",
    cell: (row) =>
      element("time", { class: "nowrap", datetime: row.last_at, title: stamp(row.last_at), text: ago(row.last_at) }),
  },
];
const RATE_COLUMNS = [{ label: "Device class and group", cell: where }, ...MEASURED];
const SERIES_COLUMNS = [{ label: "Case", cell: caseLink }, ...MEASURED];
const CSV_COLUMNS = [
  ["repository", (row) => row.repository],
  ["device_class", (row) => row.device_class],
  ["group", (row) => row.group],
  ["case", (row) => row.case],
  ["case_version", (row) => row.case_version],
  ["false_alarms", (row) => row.false_alarms.count],
  ["decided", (row) => row.false_alarms.trials],
  ["rate", (row) => row.false_alarms.rate],
  ["rate_low", (row) => row.false_alarms.low],
  ["rate_high", (row) => row.false_alarms.high],
  ["noise_floor", (row) => row.noise_floor],
  ["minimum_detectable_effect", (row) => row.minimum_detectable_effect],
  ["jobs", (row) => row.jobs],
  ["last_at", (row) => row.last_at],
];

start();
