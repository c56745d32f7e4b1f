// What each commit of a stack did: a table per case and device class, the oldest commit first, the whole last.

import { csvLink } from "./download.js";
import { breakable, element } from "./dom.js";
import { percent, quantity, shortSha } from "./format.js";
import { table } from "./table.js";
import { forestReach } from "./verdict.js";
import { CSV_COLUMNS, intervalCell, verdictCell } from "./verdict_table.js";

const COMMIT_COLUMNS = ["position", "commit", "baseline", "subject"].map((name) => [name, (row) => row[name]]);

/** `rows` are those of the commits as the API orders them, `wholes` those of the verdicts. */
export function stackTables(rows, wholes) {
  const cases = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.device_class, row.case, row.case_version]);
    if (!cases.has(key)) cases.set(key, []);
    cases.get(key).push(row);
  }
  return [...cases.values()].flatMap((own) => {
    const [{ case: name, device_class: device, case_version: version }] = own;
    const whole = wholes.find(
      (row) => row.case === name && row.device_class === device && row.case_version === version,
    );
    return [
      element("div", { class: "card-body" }, element("h3", {}, ...breakable(name), ` on ${device}`)),
      element("div", { class: "table-box" }, caseTable(name, whole ? [...own, whole] : own)),
    ];
  });
}

/** CSV of all commits and cases. */
export function stackTools(rows, filename) {
  return [csvLink(filename, [...COMMIT_COLUMNS, ...CSV_COLUMNS], () => rows)];
}

function caseTable(name, rows) {
  const reach = forestReach(rows);
  const columns = [
    { label: "Commit", cell: commitCell },
    { label: "Before", kind: "num third", cell: (row) => quantity(row.before, row.unit) },
    { label: "After", kind: "num third", cell: (row) => quantity(row.after, row.unit) },
    { label: "Delta", kind: "num strong third", cell: (row) => percent(row.effect) },
    { label: "Interval", cell: (row) => intervalCell(row, reach) },
    { label: "Verdict", cell: verdictCell },
  ];
  return table(columns, rows, `${name}: what each commit did, and all of them together`);
}

function commitCell(row) {
  if (row.position === undefined) return element("strong", { text: "all" });
  return element(
    "div",
    {},
    element("span", { class: "mono", title: row.commit, text: shortSha(row.commit) }),
    element("div", { class: "sub", text: row.subject ?? "" }),
  );
}
