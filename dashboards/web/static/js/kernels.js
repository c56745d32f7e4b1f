// Kernel by kernel, before and after: times and resources of each kernel of a case, from one profiled run per commit.

import { csvLink, jsonLink } from "./download.js";
import { breakable, element } from "./dom.js";
import { number, percent, plural, quantity } from "./format.js";
import { table } from "./table.js";

const RESOURCES = [
  "calls",
  "time_ms",
  "registers",
  "shared_bytes",
  "dynamic_shared_bytes",
  "spill_store_bytes",
  "spill_load_bytes",
  "occupancy",
  "occupancy_limit",
  "sass_bytes",
];
const CSV_COLUMNS = [
  ["case", (row) => row.case],
  ["kernel", (row) => row.kernel],
  ["kind", (row) => row.kind],
  ...["before", "after"].flatMap((side) => RESOURCES.map((name) => [`${side}_${name}`, (row) => row[side]?.[name]])),
  ["effect", (row) => row.effect],
];
const STATUS = { unsupported: "not profiled", failed: "profile failed" };

/** `found`: what /measurements/ID/kernels says. Columns that nobody knows anything of are left out. */
export function kernelTable(found) {
  const first = new Set(found.rows.filter((row, index) => row.case !== found.rows[index - 1]?.case));
  const columns = [
    { label: "Case", cell: (row) => (first.has(row) ? element("span", { class: "case" }, breakable(row.case)) : null) },
    { label: "Kernel", cell: kernelCell },
    { label: "Before", kind: "num third", cell: (row) => time(row.before) },
    { label: "After", kind: "num third", cell: (row) => time(row.after) },
    { label: "Delta", kind: "num strong third", cell: (row) => (row.effect === null ? null : percent(row.effect)) },
    resource(found, "Registers", "registers", String),
    resource(found, "Spills", "spill_load_bytes", (bytes) => `${bytes} B`, spillNote),
    resource(found, "Shared", "shared_bytes", (bytes) => `${bytes} B`),
    resource(found, "Occupancy", "occupancy", (share) => `${(100 * share).toFixed(0)} %`, limitNote),
    resource(found, "SASS", "sass_bytes", (bytes) => `${bytes} B`),
  ].filter(Boolean);
  return table(columns, found.rows, "Kernels of each case before and after: time, registers, spills, occupancy, code size");
}

export const kernelTools = (found, url, filename) => [jsonLink(url), csvLink(filename, CSV_COLUMNS, () => found.rows)];

/** Where the numbers are from, and why some are missing. */
export function kernelNotes(found) {
  const done = found.profiles.find(({ status }) => status === "done");
  const lines = done ? [`One profiled run of each commit, ${plural(done.calls, "call")} per case: ${done.source}. Not judged.`] : [];
  for (const { arm, status, reason } of found.profiles)
    if (status !== "done") lines.push(`${arm === "A" ? "Before" : "After"}: ${STATUS[status] ?? status}, ${reason}.`);
  if (done?.counters_reason) {
    const cases = done.counters_cases ? `of ${plural(done.counters_cases, "case")} only` : "of no case";
    lines.push(`Hardware counters ${cases}: ${done.counters_reason}`);
  }
  return lines.map((text) => element("p", { class: "small muted", text }));
}

const time = (side) => (side ? quantity(side.time_ms, "ms") : null);

function kernelCell(row) {
  const side = row.after ?? row.before;
  const gone = row.after === null ? "gone" : row.before === null ? "new" : null;
  const facts = [
    row.kind === "kernel" ? null : row.kind,
    `${(100 * side.share).toFixed(1)} % of the case`,
    side.calls === 1 ? null : `${Number(side.calls.toFixed(2))} launches`,
    gone,
  ];
  return element(
    "div",
    {},
    element("span", { class: "mono kernel", text: row.kernel }),
    element("div", { class: "sub", text: facts.filter(Boolean).join(" · ") }),
    counters(side.counters),
  );
}

function counters(values) {
  const entries = Object.entries(values ?? {});
  if (entries.length === 0) return null;
  const text = entries.map(([name, value]) => `${name.replaceAll("_", " ")} ${number(value)}`).join(" · ");
  return element("div", { class: "sub", text });
}

/** A column of one resource, "40 → 48" where it changed; null when no kernel has it. */
function resource(found, label, name, format, note = () => null) {
  if (!found.rows.some((row) => known(row.before, name) || known(row.after, name))) return null;
  return {
    label,
    kind: "num",
    cell: (row) => {
      if (!known(row.before, name) && !known(row.after, name)) return null;
      const texts = [row.before, row.after].filter(Boolean).map((side) => (known(side, name) ? format(side[name]) : "–"));
      const text = texts.length === 2 && texts[0] !== texts[1] ? texts.join(" → ") : texts[0];
      const below = note(row.after ?? row.before);
      const span = element("span", { class: "nowrap", text });
      return below ? element("div", {}, span, element("div", { class: "sub", text: below })) : span;
    },
  };
}

const known = (side, name) => side?.[name] !== null && side?.[name] !== undefined;

const limitNote = (side) => (side.occupancy_limit ? `by ${side.occupancy_limit}` : null);

const spillNote = (side) => (side.spill_store_bytes ? `${side.spill_store_bytes} B stored` : null);
