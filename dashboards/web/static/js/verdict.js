// Verdicts and states as badges, effects as small drawings, and the Markdown table of a pull request.

import { element, icon, svg } from "./dom.js";
import { interval, percent, quantity, words } from "./format.js";

/** The worst first: the order of every table of verdicts. */
export const SEVERITY = [
  "failed",
  "regressed",
  "environment",
  "throttled",
  "inconclusive",
  "not_comparable",
  "improved",
  "unchanged",
];
export const EQUIVALENCE = 0.01;
const STATE_ICONS = { preparing: "running", measuring: "running", judging: "running" };
const MEANINGS = {
  improved: "faster: the whole interval lies below −0.3 %",
  regressed: "slower: the whole interval lies above +0.3 %",
  unchanged: "the 95 % interval lies within ±1 %",
  inconclusive: "the budget of pairs was spent before the evidence sufficed",
  throttled: "under half of the pairs could be admitted",
  environment: "unrelated cases moved together: the machine, not the commit",
  not_comparable: "there is no baseline to compare with",
  failed: "wrong results, or no result at all",
};

export function verdictBadge(verdict) {
  return element(
    "span",
    { class: `badge tone-${verdict}`, title: MEANINGS[verdict] },
    icon(verdict),
    element("span", { text: words(verdict) }),
  );
}

export function stateBadge(state) {
  const running = state in STATE_ICONS;
  return element(
    "span",
    { class: `badge tone-${state}` },
    icon(STATE_ICONS[state] ?? state, running ? "spin" : ""),
    element("span", { text: state }),
  );
}

export function bySeverity(rows) {
  const rank = (row) => SEVERITY.indexOf(row.verdict);
  return [...rows].sort(
    (one, two) =>
      rank(one) - rank(two) ||
      Math.abs(two.effect ?? 0) - Math.abs(one.effect ?? 0) ||
      one.case.localeCompare(two.case),
  );
}

export function countVerdicts(rows) {
  const counts = new Map(SEVERITY.map((verdict) => [verdict, 0]));
  for (const row of rows) if (row.verdict) counts.set(row.verdict, (counts.get(row.verdict) ?? 0) + 1);
  return [...counts].filter(([, count]) => count > 0);
}

/** Effect and interval on an axis of ± `reach`, with the zone of equivalence shaded. Text says the same beside it. */
export function forestMark(row, reach) {
  const width = 96;
  const middle = 9;
  const at = (ratio) => width * (0.5 + Math.max(-1, Math.min(1, ratio / reach)) / 2);
  const zone = Math.min(EQUIVALENCE, reach);
  const mark = svg(
    "svg",
    { class: `forest tone-${row.verdict}`, viewBox: `0 0 ${width} 18`, "aria-hidden": "true" },
    svg("rect", { class: "zone", x: at(-zone), y: 1, width: at(zone) - at(-zone), height: 16, rx: 2 }),
    svg("line", { class: "zero", x1: at(0), x2: at(0), y1: 1, y2: 17 }),
  );
  if (row.interval_low !== null && row.interval_low !== undefined) {
    mark.append(
      svg("line", { class: "span", x1: at(row.interval_low), x2: at(row.interval_high), y1: middle, y2: middle }),
    );
  }
  if (row.effect !== null && row.effect !== undefined) {
    mark.append(svg("circle", { class: "mid", cx: at(row.effect), cy: middle, r: 4 }));
  }
  return mark;
}

/** A reach for `forestMark` that shows the bulk of the rows: at least ±2 %, at most ±25 %. */
export function forestReach(rows) {
  const ends = rows.flatMap((row) => [row.interval_low, row.interval_high, row.effect]);
  const largest = Math.max(0, ...ends.filter(Number.isFinite).map(Math.abs));
  return Math.min(0.25, Math.max(0.02, largest * 1.1));
}

/** What an `unchanged` could have seen, or why there is no answer. */
export function reasonText(row) {
  if (
    row.verdict === "unchanged" &&
    row.minimum_detectable_effect !== null &&
    row.minimum_detectable_effect !== undefined
  ) {
    return `could have seen ${percent(row.minimum_detectable_effect).replace("+", "")}`;
  }
  return (row.reasons ?? []).map((reason) => reason.detail ?? words(reason.code)).join("; ");
}

/** The rows as the Markdown that `s2bench compare` prints. */
export function markdownTable(rows) {
  const lines = ["| case | before | after | delta | interval | verdict |", "| --- | ---: | ---: | ---: | ---: | --- |"];
  for (const row of bySeverity(rows)) {
    const cells = [
      row.case,
      quantity(row.before, row.unit),
      quantity(row.after, row.unit),
      percent(row.effect),
      intervalCell(row),
      verdictCell(row),
    ];
    lines.push(`| ${cells.map(escapeMarkdown).join(" | ")} |`);
  }
  return `${lines.join("\n")}\n`;
}

function intervalCell(row) {
  const text = interval(row.interval_low, row.interval_high);
  const visible = row.minimum_detectable_effect;
  if (row.verdict !== "unchanged" || visible === null || visible === undefined) return text;
  return `${text} (detectable: ${percent(visible).replace("+", "")})`;
}

function verdictCell(row) {
  const decided = ["improved", "regressed", "unchanged"].includes(row.verdict);
  return decided || !row.reasons?.length ? row.verdict : `${row.verdict} (${row.reasons[0].code})`;
}

/** Names come from the measured commit: nothing in them may leave its cell. The typographic minus becomes ASCII. */
function escapeMarkdown(text) {
  return text
    .replaceAll("\\", "\\\\")
    .replaceAll("|", "\\|")
    .replace(/[\r\n]/g, " ")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;")
    .replaceAll("`", "\\`")
    .replaceAll("−", "-");
}
