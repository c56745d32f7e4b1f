// The trend of a series: line and interval band per GPU, gaps where there is no evidence, verdicts in a lane below.

import { day, number, percent, plural, shortSha, words } from "./format.js";
import { changeLegend, changeShapes } from "./changes.js";
import { axis } from "./plot.js";
import { element, svg } from "./dom.js";

export const GPU_COLORS = ["accent", "second", "third", "fourth"];
const LANE = {
  regressed: { symbol: "triangle-up", size: 11 },
  improved: { symbol: "triangle-down", size: 11 },
  unchanged: { symbol: "square", size: 5 },
  inconclusive: { symbol: "circle-open", size: 8 },
  throttled: { symbol: "circle-open", size: 8 },
  environment: { symbol: "diamond", size: 9 },
  not_comparable: { symbol: "square-open", size: 7 },
  failed: { symbol: "x", size: 9, color: "regressed" },
};
const LEFT_OUT = {
  throttled: "throttled",
  sparse: "too few processes",
  clock_low: "its clock was lower than this GPU usually has",
  bad_value: "its value is impossible",
  off_line: "its commit is not on the default branch",
  late: "it came after all that the history remembers",
};
const STATUS = {
  ok: "enough admitted processes",
  throttled: "throttled: under half of the pairs admitted",
  sparse: "sparse: fewer processes than a look needs",
};

/** `view`: {x: "commit" | "date", y: "fit" | "zero", range}; `points` in the order of their commits. */
export function trendPlot(points, changes, series, view, theme, width) {
  const place = placing(points, view.x);
  const data = gpusOf(points).flatMap((gpu, index) => {
    const own = points.filter((point) => point.gpu_uuid === gpu);
    return gpuTraces(own, place, theme, theme[GPU_COLORS[index % GPU_COLORS.length]]);
  });
  data.push(...statusTraces(points, place, theme), ...laneTraces(points, place, theme));
  const frame = layout(points, series, view, theme, place, width);
  frame.shapes.push(...changeShapes(changes, place, theme));
  return { data, layout: frame };
}

/** The card of a point; `environment` is a promise of more facts. */
export function pointCard(point, series, environment) {
  const facts = [
    ["commit", shortSha(point.commit)],
    ["date", point.committed_at ? day(point.committed_at) : "unknown"],
    [series.metric, `${number(point.value)} ${series.unit}`],
    ["interval", `${number(point.low)} … ${number(point.high)} ${series.unit}`],
    ["evidence", `${plural(point.processes, "process", "processes")}, ${STATUS[point.status] ?? point.status}`],
    ["measured as", point.arm === "A" ? "baseline" : "candidate"],
  ];
  if (point.orphaned) facts.push(["on a branch", "no longer"]);
  if (point.author) facts.splice(2, 0, ["author", point.author]);
  if (point.verdict)
    facts.push(["verdict", `${words(point.verdict)} ${point.effect === null ? "" : percent(point.effect)}`]);
  if (point.history && point.history !== "ok")
    facts.push(["left out of the history", LEFT_OUT[point.history] ?? words(point.history)]);
  if (point.gpu_uuid) facts.push(["GPU", point.gpu_uuid]);
  return { title: point.subject ?? "subject unknown", facts, later: environment };
}

/** One key per GPU where there are several: their levels differ by some percent and are never compared. */
function gpuLegend(points) {
  const gpus = gpusOf(points);
  if (gpus.length < 2) return [];
  return gpus.map((gpu, index) =>
    element(
      "span",
      {},
      key(svg("line", { class: `gpu-${index % GPU_COLORS.length}`, x1: 0, x2: 22, y1: 6, y2: 6 })),
      gpu ?? "GPU unknown",
    ),
  );
}

export function trendLegend(points, changes) {
  const has = (status) => points.some((point) => point.status === status);
  const items = [
    [
      key(
        svg("rect", { class: "band", x: 0, y: 1, width: 22, height: 10 }),
        svg("line", { class: "line", x1: 0, x2: 22, y1: 6, y2: 6 }),
        svg("circle", { class: "dot", cx: 11, cy: 6, r: 3 }),
      ),
      "value and its interval",
    ],
    has("throttled") ? [key(svg("circle", { class: "hollow", cx: 11, cy: 6, r: 4 })), "throttled: no evidence"] : null,
    has("sparse")
      ? [key(svg("path", { class: "sparse", d: "M11 1.5 15.5 6 11 10.5 6.5 6z" })), "sparse: few processes"]
      : null,
    [key(svg("path", { class: "up", d: "M11 2 15 9H7z" })), "regressed"],
    [key(svg("path", { class: "down", d: "M11 10 7 3h8z" })), "improved"],
  ];
  const marks = items.filter(Boolean).map(([mark, text]) => element("span", {}, mark, text));
  return [...gpuLegend(points), ...marks, ...changeLegend(changes)];
}

const gpusOf = (points) => [...new Set(points.map((point) => point.gpu_uuid))];

const key = (...shapes) => svg("svg", { class: "key", viewBox: "0 0 22 12", "aria-hidden": "true" }, ...shapes);

/**
 * Where a point lies on the x axis: at its commit (evenly spaced) or at its date. `commit(sha)` is the place of a commit
 * and `before(change)` that of a change; null where the commit is not shown.
 */
function placing(points, kind) {
  if (kind === "date") {
    const of = (point) => point.committed_at ?? point.measured_at;
    const dates = new Map(points.map((point) => [point.commit, of(point)]));
    const commit = (sha) => dates.get(sha) ?? null;
    return { type: "date", of, commit, before: (change) => commit(change.commit) };
  }
  const shas = [...new Set(points.map((point) => point.commit))];
  const short = new Set(shas.map(shortSha)).size === shas.length;
  const label = (sha) => (short ? shortSha(sha) : sha);
  const index = new Map(shas.map((sha, at) => [sha, at]));
  const commit = (sha) => index.get(sha) ?? null;
  const before = (change) => (index.has(change.commit) ? index.get(change.commit) - 0.5 : null);
  return { type: "category", of: (point) => label(point.commit), categories: shas.map(label), shas, commit, before };
}

/** One value per commit: the median one of its usable points. A commit without any is a gap. */
function perCommit(points) {
  const commits = new Map();
  for (const point of points) {
    if (!commits.has(point.commit)) commits.set(point.commit, []);
    commits.get(point.commit).push(point);
  }
  return [...commits.values()].map((all) => {
    const usable = all.filter((point) => point.status === "ok").sort((one, two) => one.value - two.value);
    return usable.length ? usable[(usable.length - 1) >> 1] : { ...all[0], value: null };
  });
}

function gpuTraces(points, place, theme, color) {
  const middle = perCommit(points);
  const usable = points.filter((point) => point.status === "ok");
  return [
    bandTrace(middle, place, color),
    {
      type: "scatter",
      mode: "lines",
      x: middle.map(place.of),
      y: middle.map((point) => point.value),
      connectgaps: false,
      line: { color, width: 1.8 },
      hoverinfo: "skip",
    },
    {
      type: "scatter",
      mode: "markers",
      name: "ok",
      x: usable.map(place.of),
      y: usable.map((point) => point.value),
      customdata: usable,
      hoverinfo: "none",
      marker: { color, size: 7, line: { color: theme.surface, width: 1 } },
    },
  ];
}

/** The band is one polygon per unbroken run of commits, so that a gap stays a gap. */
function bandTrace(middle, place, color) {
  const x = [];
  const y = [];
  let run = [];
  const close = () => {
    if (run.length > 1) {
      if (x.length) {
        x.push(null);
        y.push(null);
      }
      const back = [...run].reverse();
      x.push(...run.map(place.of), ...back.map(place.of), place.of(run[0]));
      y.push(...run.map((point) => point.high), ...back.map((point) => point.low), run[0].high);
    }
    run = [];
  };
  for (const point of middle) {
    if (point.value === null) close();
    else run.push(point);
  }
  close();
  return {
    type: "scatter",
    mode: "lines",
    x,
    y,
    fill: "toself",
    fillcolor: color,
    opacity: 0.16,
    line: { width: 0 },
    hoverinfo: "skip",
  };
}

function statusTraces(points, place, theme) {
  const trace = (status, marker) => {
    const own = points.filter((point) => point.status === status);
    return {
      type: "scatter",
      mode: "markers",
      name: status,
      x: own.map(place.of),
      y: own.map((point) => point.value),
      customdata: own,
      hoverinfo: "none",
      marker,
      error_y: {
        type: "data",
        symmetric: false,
        array: own.map((point) => point.high - point.value),
        arrayminus: own.map((point) => point.value - point.low),
        color: marker.color,
        thickness: 1,
        width: 0,
      },
    };
  };
  return [
    trace("throttled", { symbol: "circle-open", size: 9, color: theme.throttled, line: { width: 1.8 } }),
    trace("sparse", { symbol: "diamond", size: 8, color: theme.unchanged, line: { color: theme.surface, width: 1 } }),
  ];
}

function laneTraces(points, place, theme) {
  return Object.entries(LANE).map(([verdict, look]) => {
    const own = points.filter((point) => point.verdict === verdict);
    const color = theme[look.color ?? verdict] ?? theme.unchanged;
    return {
      type: "scatter",
      mode: "markers",
      name: verdict,
      x: own.map(place.of),
      y: own.map(() => 0),
      yaxis: "y2",
      customdata: own,
      hoverinfo: "none",
      cliponaxis: false,
      marker: { symbol: look.symbol, size: look.size, color, line: { width: 1.5, color } },
    };
  });
}

function layout(points, series, view, theme, place, width) {
  const x =
    place.type === "date"
      ? axis(theme, "commit date", { type: "date", showgrid: false })
      : axis(theme, "commit, oldest first", {
          type: "category",
          categoryorder: "array",
          categoryarray: place.categories,
          showgrid: false,
          nticks: Math.max(2, Math.floor(width / 110)),
          tickangle: 0,
          tickfont: { family: theme.mono, size: 10.5, color: theme.muted },
        });
  return {
    xaxis: { ...x, anchor: "y2", range: rangeOf(view, place), showspikes: false },
    yaxis: axis(theme, `${series.metric} (${series.unit})`, {
      domain: [0.15, 1],
      range: view.y === "zero" ? undefined : fittedRange(points),
      rangemode: view.y === "zero" ? "tozero" : "normal",
    }),
    yaxis2: {
      domain: [0, 0.09],
      range: [-1, 1],
      showticklabels: false,
      showgrid: false,
      zeroline: false,
      fixedrange: true,
    },
    shapes: [
      {
        type: "rect",
        xref: "paper",
        yref: "paper",
        x0: 0,
        x1: 1,
        y0: 0,
        y1: 0.09,
        fillcolor: theme.equivalence,
        line: { width: 0 },
        layer: "below",
      },
    ],
    margin: { l: 64, r: 14, t: 10, b: 48 },
  };
}

/** Room around the values, and never less than ±2 %: plain noise must not fill the plot. */
function fittedRange(points) {
  const low = Math.min(...points.map((point) => point.low));
  const high = Math.max(...points.map((point) => point.high));
  const middle = (low + high) / 2;
  const half = Math.max(((high - low) / 2) * 1.12, middle * 0.02);
  return [Math.max(0, middle - half), middle + half];
}

/** The part of the axis that the address asks for; undefined shows everything. */
function rangeOf(view, place) {
  if (!view.from || !view.to) return place.type === "category" ? [-0.6, place.categories.length - 0.4] : undefined;
  if (place.type === "date") return [view.from, view.to];
  const at = (sha) => place.shas.findIndex((full) => full.startsWith(sha));
  const [from, to] = [at(view.from), at(view.to)];
  return from < 0 || to < 0 ? [-0.6, place.categories.length - 0.4] : [from - 0.5, to + 0.5];
}
