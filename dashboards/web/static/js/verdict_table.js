// The table of a pull request: case, before, after, delta, interval, verdict. Job and compare page share it.

import { csvLink } from "./download.js";
import { breakable, element, icon, toast } from "./dom.js";
import { interval, percent, quantity } from "./format.js";
import { table } from "./table.js";
import { bySeverity, forestMark, forestReach, markdownTable, reasonText, verdictBadge } from "./verdict.js";

export const CSV_COLUMNS = [
  "case",
  "case_version",
  "group",
  "device_class",
  "gpu_uuid",
  "unit",
  "before",
  "after",
  "effect",
  "interval_low",
  "interval_high",
  "verdict",
  "pairs_used",
  "pairs_rejected",
  "minimum_detectable_effect",
]
  .map((name) => [name, (row) => row[name]])
  .concat([["reasons", (row) => row.reasons.map((reason) => reason.code).join(" ")]]);

export function verdictTable(rows) {
  const reach = forestReach(rows);
  const several = new Set(rows.map((row) => row.device_class)).size > 1;
  const columns = [
    { label: "Case", cell: caseCell },
    several ? { label: "Device", cell: (row) => row.device_class } : null,
    { label: "Before", kind: "num third", cell: (row) => quantity(row.before, row.unit) },
    { label: "After", kind: "num third", cell: (row) => quantity(row.after, row.unit) },
    { label: "Delta", kind: "num strong third", cell: (row) => percent(row.effect) },
    { label: "Interval", cell: (row) => intervalCell(row, reach) },
    { label: "Verdict", cell: verdictCell },
    { label: "Pairs", kind: "num", cell: pairsCell },
  ].filter(Boolean);
  return table(columns, bySeverity(rows), "Verdict per case: before, after, delta with its interval, and the verdict");
}

/** CSV and "copy as Markdown" for a table of verdicts. */
export function verdictTools(rows, filename) {
  const copy = element("button", { type: "button", class: "button" }, icon("copy"), "Copy as Markdown");
  copy.addEventListener("click", async () => {
    await copyText(markdownTable(rows));
    toast("The table is in the clipboard");
  });
  return [csvLink(filename, CSV_COLUMNS, () => bySeverity(rows)), copy];
}

function caseCell(row) {
  const link = row.series_id ? `/series/${row.series_id}` : null;
  return element(link ? "a" : "span", { class: "case", href: link }, breakable(row.case));
}

export function intervalCell(row, reach) {
  if (row.interval_low === null) return null;
  const text = element("span", { class: "small muted nowrap", text: interval(row.interval_low, row.interval_high) });
  return element("div", { class: "effect stacked" }, forestMark(row, reach), text);
}

export function verdictCell(row) {
  const reason = reasonText(row);
  return element(
    "div",
    {},
    verdictBadge(row.verdict),
    reason ? element("div", { class: "sub", text: reason }) : null,
    numericsNote(row),
  );
}

function numericsNote(row) {
  const numerics = row.numerics;
  if (!numerics || numerics.status === "ok" || row.reasons.length) return null;
  const error = numerics.candidate_error;
  const text = Number.isFinite(error)
    ? `relative error ${error.toExponential(1)}, tolerance ${Number(numerics.tolerance).toExponential(1)}`
    : `numerics ${numerics.status}`;
  return element("div", { class: "sub", text });
}

function pairsCell(row) {
  return row.pairs_rejected ? `${row.pairs_used} (${row.pairs_rejected} rejected)` : String(row.pairs_used);
}

/** The clipboard is only there on https and loopback; elsewhere the browser's old way is taken. */
async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = element("textarea", { class: "visually-hidden" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
