// Forest plot: the effect of every case with its interval, the zone of equivalence shaded, the worst on top.

import { interval, percent, quantity, words } from "./format.js";
import { axis, escapeLabel } from "./plot.js";
import { EQUIVALENCE, SEVERITY, bySeverity, reasonText } from "./verdict.js";

const CHARACTER_PX = 7.1; // of the 11.5 px monospaced names
const NUMBERS_PX = 220;
const PLOT_MINIMUM_PX = 380;
const SYMBOLS = {
  improved: "triangle-down",
  regressed: "triangle-up",
  unchanged: "square",
  inconclusive: "circle-open",
  throttled: "circle-open",
  environment: "diamond",
  not_comparable: "square-open",
  failed: "x",
};

/** On a wide page names stand left and numbers right of the plot; on a narrow one the name stands above its row. */
export function forestPlot(rows, theme, width) {
  const several = new Set(rows.map((row) => row.device_class)).size > 1;
  const names_px = Math.max(...rows.map((row) => nameOf(row, several).length)) * CHARACTER_PX + 24;
  const wide = width >= names_px + NUMBERS_PX + PLOT_MINIMUM_PX;
  const sorted = bySeverity(rows);
  const placed = sorted.map((row, index) => ({ row, y: sorted.length - 1 - index }));
  const data = SEVERITY.map((verdict) =>
    verdictTrace(
      verdict,
      placed.filter(({ row }) => row.verdict === verdict && row.effect !== null),
      theme,
    ),
  );
  return {
    data: data.filter((trace) => trace.x.length),
    layout: {
      height: 64 + (wide ? 34 : 48) * sorted.length,
      margin: wide ? { l: names_px, r: NUMBERS_PX, t: 6, b: 46 } : { l: 8, r: 16, t: 6, b: 46 },
      xaxis: axis(theme, "effect (after / before − 1); right of zero is slower", {
        ticksuffix: " %",
        range: reach(sorted),
      }),
      yaxis: {
        range: [-0.6, sorted.length - (wide ? 0.4 : 0.3)],
        showticklabels: false,
        showgrid: false,
        zeroline: false,
        fixedrange: true,
      },
      shapes: shapes(theme),
      annotations: placed.flatMap(({ row, y }) =>
        wide
          ? [nameLeft(row, y, several, theme), numbersRight(row, y, theme)]
          : [nameAbove(row, y, several, theme, width)],
      ),
    },
  };
}

export function forestCard(row) {
  const facts = [
    ["verdict", words(row.verdict)],
    ["effect", percent(row.effect)],
    ["interval", interval(row.interval_low, row.interval_high)],
    ["before", quantity(row.before, row.unit)],
    ["after", quantity(row.after, row.unit)],
    ["pairs", `${row.pairs_used} used, ${row.pairs_rejected} rejected`],
    ["device", row.device_class],
  ];
  const reason = reasonText(row);
  if (reason) facts.push(["reason", reason]);
  return { title: row.case, facts };
}

function verdictTrace(verdict, placed, theme) {
  const color = theme[verdict === "failed" ? "regressed" : verdict] ?? theme.unchanged;
  const effects = placed.map(({ row }) => 100 * row.effect);
  return {
    type: "scatter",
    mode: "markers",
    name: verdict,
    x: effects,
    y: placed.map(({ y }) => y),
    customdata: placed.map(({ row }) => row),
    hoverinfo: "none",
    marker: {
      symbol: SYMBOLS[verdict],
      size: verdict === "unchanged" ? 8 : 12,
      color,
      line: { width: SYMBOLS[verdict].endsWith("open") ? 2 : 0, color },
    },
    error_x: {
      type: "data",
      symmetric: false,
      color,
      thickness: 1.8,
      width: 5,
      array: placed.map(({ row }, index) =>
        row.interval_high === null ? 0 : 100 * row.interval_high - effects[index],
      ),
      arrayminus: placed.map(({ row }, index) =>
        row.interval_low === null ? 0 : effects[index] - 100 * row.interval_low,
      ),
    },
  };
}

/** At least the zone of equivalence and some air on both sides, so that "nothing happened" looks like it. */
function reach(rows) {
  const ends = rows.flatMap((row) => [row.effect, row.interval_low, row.interval_high]).filter(Number.isFinite);
  const low = Math.min(-2 * EQUIVALENCE, ...ends);
  const high = Math.max(2 * EQUIVALENCE, ...ends);
  const air = (high - low) * 0.05;
  return [100 * (low - air), 100 * (high + air)];
}

function shapes(theme) {
  const whole = { xref: "x", yref: "paper", y0: 0, y1: 1, layer: "below" };
  const zone = 100 * EQUIVALENCE;
  return [
    { ...whole, type: "rect", x0: -zone, x1: zone, fillcolor: theme.equivalence, line: { width: 0 } },
    { ...whole, type: "line", x0: 0, x1: 0, line: { color: theme["line-strong"], width: 1.5 } },
  ];
}

const nameOf = (row, several) => (several ? `${row.case} · ${row.device_class}` : row.case);

function note(y, theme, more) {
  return {
    xref: "paper",
    yref: "y",
    y,
    showarrow: false,
    font: { size: 11.5, color: theme.muted, family: theme.mono },
    ...more,
  };
}

function nameLeft(row, y, several, theme) {
  return note(y, theme, {
    text: escapeLabel(nameOf(row, several)),
    x: 0,
    xanchor: "right",
    xshift: -12,
    align: "right",
  });
}

function numbersRight(row, y, theme) {
  const text =
    row.effect === null
      ? words(row.verdict)
      : `${percent(row.effect)}  ${interval(row.interval_low, row.interval_high)}`;
  return note(y, theme, {
    text: escapeLabel(text),
    x: 1,
    xanchor: "left",
    xshift: 12,
    align: "left",
    font: { size: 12, color: theme.text, family: theme.font },
  });
}

function nameAbove(row, y, several, theme, width) {
  const ending = row.effect === null ? ` — ${words(row.verdict)}` : "";
  const room = Math.floor((width - 24) / CHARACTER_PX) - ending.length;
  const name = nameOf(row, several);
  const text = name.length > room ? `${name.slice(0, room - 1)}…` : name;
  return note(y, theme, { text: escapeLabel(`${text}${ending}`), x: 0, xanchor: "left", yshift: 18, align: "left" });
}
