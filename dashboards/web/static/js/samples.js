// The raw samples behind one verdict: per pair of processes in the order taken, and as distributions of both arms.

import { element } from "./dom.js";
import { number, percent, words } from "./format.js";
import { axis } from "./plot.js";
import { table } from "./table.js";

const SIDE = { A: -0.17, B: 0.17 };
const NAMES = { A: "before", B: "after" };
const JITTER = 0.11;
const NARROW = 560;

/** `blocks`: samples of one process each; `pairs`: what was admitted; `name`: the case. */
export function samplesPlot(blocks, pairs, name, theme, width) {
  const admitted = admission(pairs, name);
  const unit = blocks[0].unit;
  const data = ["A", "B"].flatMap((arm) => {
    const own = blocks.filter((block) => block.arm === arm);
    const color = arm === "A" ? theme.baseline : theme.candidate;
    return [sampleTrace(own, arm, color), medianTrace(own, arm, color, admitted, theme), histogram(own, arm, color)];
  });
  return {
    data,
    layout: {
      height: 380,
      barmode: "overlay",
      margin: { l: 64, r: 14, t: 10, b: 46 },
      xaxis: axis(theme, width < NARROW ? "pair" : "pair of processes, in the order taken", {
        domain: [0, 0.76],
        showgrid: false,
        tick0: 0,
        dtick: Math.max(1, Math.ceil(pairs.length / 12)),
      }),
      yaxis: axis(theme, `time (${unit})`),
      xaxis2: axis(theme, "samples", { domain: [0.8, 1], showgrid: false, nticks: 3 }),
    },
  };
}

export function sampleCard({ block, median, admitted }) {
  return {
    title: `pair ${block.pair}, ${NAMES[block.arm]}`,
    facts: [
      ["median", `${number(median)} ${block.unit}`],
      ["samples", String(block.samples.length)],
      ["order", block.order],
      ["pair", admittedText(admitted)],
    ],
  };
}

/** Medians per pair as a table: what the verdict was computed from. */
export function pairTable(pairs, name) {
  const rows = pairs
    .map((pair) => ({ ...pair, own: pair.cases.find((one) => one.case === name) }))
    .filter((pair) => pair.own);
  const columns = [
    { label: "Pair", cell: (row) => String(row.index) },
    { label: "Order", cell: (row) => row.order },
    { label: "Before (ms)", kind: "num third", cell: (row) => number(row.own.before_ms) },
    { label: "After (ms)", kind: "num third", cell: (row) => number(row.own.after_ms) },
    {
      label: "Ratio − 1",
      kind: "num strong third",
      cell: (row) => percent(row.own.log_ratio === null ? null : Math.expm1(row.own.log_ratio)),
    },
    { label: "Admitted", cell: (row) => admittedText(row.own) },
  ];
  return element(
    "details",
    {},
    element("summary", { text: `Medians of ${rows.length} pairs` }),
    element("div", { class: "table-box" }, table(columns, rows, `Medians per pair of ${name}`)),
  );
}

export const SAMPLE_COLUMNS = [
  ["pair", (row) => row.pair],
  ["order", (row) => row.order],
  ["arm", (row) => row.arm],
  ["position", (row) => row.position],
  ["value", (row) => row.value],
  ["unit", (row) => row.unit],
];

export const sampleRows = (blocks) =>
  blocks.flatMap((block) => block.samples.map((value, position) => ({ ...block, value, position })));

function admission(pairs, name) {
  return new Map(pairs.map((pair) => [pair.index, pair.cases.find((one) => one.case === name)]));
}

function admittedText(one) {
  if (!one || one.admitted === null) return "not judged";
  return one.admitted ? "admitted" : `rejected: ${one.reasons.map(words).join(", ")}`;
}

/** Every sample, spread a little sideways in the order taken so that drift within a process shows. */
function sampleTrace(blocks, arm, color) {
  const x = blocks.flatMap((block) =>
    block.samples.map(
      (_, index) => block.pair + SIDE[arm] + JITTER * (2 * (index / Math.max(1, block.samples.length - 1)) - 1),
    ),
  );
  return {
    type: "scatter",
    mode: "markers",
    name: `samples ${arm}`,
    x,
    y: blocks.flatMap((block) => block.samples),
    hoverinfo: "skip",
    marker: { color, size: 3.5, opacity: 0.45 },
  };
}

function medianTrace(blocks, arm, color, admitted, theme) {
  const cards = blocks.map((block) => ({ block, median: medianOf(block.samples), admitted: admitted.get(block.pair) }));
  return {
    type: "scatter",
    mode: "markers",
    name: `median ${arm}`,
    x: blocks.map((block) => block.pair + SIDE[arm]),
    y: cards.map((card) => card.median),
    customdata: cards,
    hoverinfo: "none",
    marker: {
      symbol: cards.map((card) => (card.admitted?.admitted === false ? "circle-open" : "circle")),
      size: 9,
      color: cards.map((card) => (card.admitted?.admitted === false ? theme.throttled : color)),
      line: { color: theme.surface, width: 1 },
    },
  };
}

function histogram(blocks, arm, color) {
  return {
    type: "histogram",
    name: `distribution ${arm}`,
    y: blocks.flatMap((block) => block.samples),
    xaxis: "x2",
    bingroup: "samples",
    nbinsy: 40,
    hoverinfo: "skip",
    opacity: 0.55,
    marker: { color },
  };
}

function medianOf(values) {
  const sorted = [...values].sort((one, two) => one - two);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
