// Series: the trend of one case on one device class, its view in the address, and its points as a table.

import { apiUrl, get } from "./api.js";
import { changesTable, holds } from "./changes.js";
import { byId, choices, element, empty, failure, loading, orphanedNote, show } from "./dom.js";
import { csvLink, jsonLink } from "./download.js";
import { ago, day, number, percent, plural, quantity, shortSha, stamp } from "./format.js";
import { draw, onRange } from "./plot.js";
import { table } from "./table.js";
import { pointCard, trendLegend, trendPlot } from "./trend.js";
import { verdictBadge } from "./verdict.js";

const SHOWN = window.matchMedia("(max-width: 720px)").matches ? 10 : 30;
const seriesId = byId("series").dataset.seriesId;
const environments = new Map();
const view = readView();
let series = null;
let points = [];
let said = { change_points: [], drift: [], searches: [] };

async function start() {
  loading(byId("points-body"));
  try {
    const path = `/series/${encodeURIComponent(seriesId)}`;
    const [answer, changes] = await Promise.all([get(`${path}/points`), get(`${path}/change-points`)]);
    series = answer.series;
    said = changes;
    points = answer.points;
  } catch (error) {
    failure(byId("series"), error, "This series could not be loaded");
    return;
  }
  renderHead();
  renderTools();
  renderChanges();
  renderTable();
  await renderTrend();
  await renderSiblings();
}

function readView() {
  const query = new URLSearchParams(location.search);
  return {
    x: query.get("x") === "date" ? "date" : "commit",
    y: query.get("y") === "zero" ? "zero" : "fit",
    gpu: query.get("gpu") ?? "",
    from: query.get("from"),
    to: query.get("to"),
  };
}

/** The whole view is in the address: a link to it shows the same picture. */
function change(part) {
  Object.assign(view, part);
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(view))
    if (value && value !== "commit" && value !== "fit") query.set(name, value);
  history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
}

const shown = () => (view.gpu ? points.filter((point) => point.gpu_uuid === view.gpu) : points);

function renderHead() {
  document.title = `${series.case} · s2bench`;
  byId("series-title").textContent = series.case;
  const usable = points.filter((point) => point.status === "ok");
  const last = usable.at(-1);
  const facts = [
    ["Device class", series.device_class],
    ["Backend", series.backend],
    ["Metric", `${series.metric} in ${series.unit}`],
    ["Case version", series.case_version],
    ["Last value", last ? `${quantity(last.value, series.unit)}, ${ago(last.measured_at)}` : "none yet"],
    ["Points", `${points.length}, of them ${usable.length} usable`],
  ];
  show(
    byId("series-facts"),
    element(
      "dl",
      { class: "facts series-facts" },
      ...facts.map(([name, text]) => element("div", {}, element("dt", { text: name }), element("dd", { text }))),
    ),
  );
}

function renderTools() {
  const redraw = (part) => {
    change(part);
    renderTrend();
  };
  const tools = [
    choices(
      "Horizontal axis",
      [
        ["commit", "By commit"],
        ["date", "By date"],
      ],
      view.x,
      (x) => redraw({ x, from: null, to: null }),
    ),
    choices(
      "Vertical axis",
      [
        ["fit", "Fit"],
        ["zero", "From zero"],
      ],
      view.y,
      (y) => redraw({ y }),
    ),
  ];
  const gpus = [...new Set(points.map((point) => point.gpu_uuid).filter(Boolean))];
  if (gpus.length > 1) {
    const select = element(
      "select",
      { class: "field", "aria-label": "GPU" },
      option("", "All GPUs", view.gpu),
      ...gpus.map((gpu) => option(gpu, gpu, view.gpu)),
    );
    select.addEventListener("change", () => redraw({ gpu: select.value }));
    tools.push(select);
  }
  show(byId("trend-tools"), ...tools);
  const fields = [
    "commit",
    "subject",
    "committed_at",
    "orphaned",
    "measured_at",
    "value",
    "low",
    "high",
    "processes",
    "status",
    "verdict",
    "effect",
    "arm",
    "gpu_uuid",
    "measurement_id",
  ];
  show(
    byId("points-tools"),
    csvLink(
      `series-${shortSha(series.case_version)}.csv`,
      fields.map((name) => [name, (point) => point[name]]),
      shown,
    ),
    jsonLink(apiUrl(`/series/${encodeURIComponent(seriesId)}/points`)),
  );
}

/** Other metrics, backends, devices and versions of the same case; hidden when there are none. */
async function renderSiblings() {
  const { items } = await get("/series", { repository: series.repository, case: series.case });
  if (items.length < 2) return;
  const name = (other) => [other.metric, other.device_class, other.backend, shortSha(other.case_version)].join(" · ");
  const select = element(
    "select",
    { class: "field", "aria-label": "Other series of this case" },
    ...items.map((other) => option(other.id, name(other), seriesId)),
  );
  select.addEventListener("change", () => location.assign(`/series/${select.value}`));
  byId("trend-tools").prepend(select);
}

const option = (value, text, selected) => element("option", { value, text, selected: value === selected });

async function renderTrend() {
  const target = byId("trend");
  if (shown().length === 0) {
    empty(
      target,
      "No points yet",
      element("p", { text: "A point appears when a measurement of this case has been judged." }),
    );
    return;
  }
  try {
    target.setAttribute("role", "img");
    target.setAttribute(
      "aria-label",
      `${series.metric} of ${series.case} over ${plural(points.length, "point")}; the table below has the values`,
    );
    await draw(target, (theme, width) => ({
      ...trendPlot(shown(), said.change_points, series, view, theme, width),
      tip: (point) => pointCard(point, series, environmentOf(point)),
    }));
    onRange(target, keepRange);
    show(byId("trend-legend"), ...trendLegend(shown(), said.change_points));
  } catch (error) {
    failure(target, error, "The plot could not be drawn");
  }
}

/** Change points and drift; while a job looks for a change, its link. */
function renderChanges() {
  const note = byId("changes-note");
  show(
    note,
    ...said.searches.map((search) =>
      element("a", { href: `/jobs/${search.job_id}`, text: "A job is looking for a change" }),
    ),
  );
  const body = byId("changes-body");
  if (!said.change_points.some(holds) && said.drift.length === 0) {
    empty(
      body,
      "No change points",
      element("p", { text: "A change point appears when the level has moved at a commit of the default branch." }),
    );
    return;
  }
  show(body, element("div", { class: "table-box" }, changesTable(said.change_points, said.drift, series)));
}

function keepRange(range) {
  if (range === null) {
    change({ from: null, to: null });
    return;
  }
  if (view.x === "date") {
    change({ from: String(range[0]), to: String(range[1]) });
    return;
  }
  const shas = [...new Set(shown().map((point) => point.commit))];
  const at = (position) => shortSha(shas[Math.max(0, Math.min(shas.length - 1, position))]);
  change({ from: at(Math.ceil(range[0])), to: at(Math.floor(range[1])) });
}

/** What the processes of a point ran on; asked for once per measurement, when somebody points at it. */
function environmentOf(point) {
  if (!environments.has(point.measurement_id)) {
    environments.set(
      point.measurement_id,
      get(`/measurements/${point.measurement_id}`).catch(() => null),
    );
  }
  return environments.get(point.measurement_id).then((measurement) => {
    const found = measurement?.environments.find((candidate) => candidate.arm === point.arm)?.environment;
    if (!found) return [["environment", "not recorded"]];
    const { gpu_name: gpu, cpu_model: cpu, python, torch, driver, cuda } = found;
    const software = [
      python && `python ${python}`,
      torch && `torch ${torch}`,
      cuda && `CUDA ${cuda}`,
      driver && `driver ${driver}`,
    ];
    return [
      ["ran on", gpu ?? cpu ?? "unknown"],
      ["with", software.filter(Boolean).join(", ") || "unknown"],
    ];
  });
}

function renderTable() {
  const body = byId("points-body");
  const rows = [...points].reverse();
  if (rows.length === 0) {
    empty(body, "No points yet");
    return;
  }
  const renderRows = (count) => {
    const more =
      rows.length > count
        ? element(
            "div",
            { class: "more" },
            element("button", {
              type: "button",
              class: "button",
              text: `Show all ${rows.length} points`,
              on: { click: () => renderRows(rows.length) },
            }),
          )
        : null;
    show(
      body,
      element(
        "div",
        { class: "table-box" },
        table(columns(), rows.slice(0, count), `Points of ${series.case}, newest first`, "points"),
      ),
      more,
    );
  };
  renderRows(SHOWN);
}

function columns() {
  return [
    { label: "Commit", cell: commitCell },
    { label: "Date", kind: "half", cell: (point) => dateCell(point.committed_at ?? point.measured_at) },
    { label: `Value (${series.unit})`, kind: "num strong half", cell: (point) => number(point.value) },
    { label: "Interval", kind: "num half", cell: (point) => `${number(point.low)} … ${number(point.high)}` },
    { label: "Status", kind: "half", cell: (point) => (point.status === "ok" ? "ok" : statusBadge(point.status)) },
    { label: "Verdict", kind: "half", cell: verdictCell },
    {
      label: "Measured",
      kind: "half",
      cell: (point) => element("a", { class: "nowrap", href: `/jobs/${point.job_id}`, text: ago(point.measured_at) }),
    },
  ];
}

const dateCell = (at) => element("time", { class: "nowrap", datetime: at, title: stamp(at), text: day(at) });

function statusBadge(status) {
  const badge = verdictBadge(status === "sparse" ? "inconclusive" : "throttled");
  badge.lastChild.textContent = status;
  badge.removeAttribute("title");
  return badge;
}

function commitCell(point) {
  return element(
    "div",
    { class: "commit-wide" },
    element("span", { class: "mono", text: shortSha(point.commit) }),
    point.orphaned ? orphanedNote() : null,
    element("div", { class: "sub", text: point.subject ?? "" }),
  );
}

function verdictCell(point) {
  if (!point.verdict) return point.arm === "A" ? element("span", { class: "muted small", text: "baseline" }) : null;
  return element(
    "div",
    { class: "row nowrap" },
    verdictBadge(point.verdict),
    point.effect === null ? null : element("span", { class: "small nowrap", text: percent(point.effect) }),
  );
}

start();
