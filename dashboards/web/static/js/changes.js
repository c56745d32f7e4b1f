// What the history of a series says: its change points in the trend, in the legend and in a table, and slow drift.

import { alertStateBadge } from "./alert_line.js";
import { element, icon, svg } from "./dom.js";
import { day, interval, percent, shortSha, stamp } from "./format.js";
import { table } from "./table.js";
import { verdictBadge } from "./verdict.js";

/** How sure a change is, as a line: proven by a job, not decidable by any, or moved although jobs cleared its commits. */
const LOOKS = {
  confirmed: { dash: "solid", width: 2, meaning: "a job of this commit against its parent has shown it" },
  unconfirmed: { dash: "dash", width: 1.6, meaning: "the level moved, and no job could decide which commit did it" },
  surroundings: { dash: "dot", width: 1.6, meaning: "the level moved, and jobs have cleared the commits" },
};
const DRIFT = "the level moved slowly; no single commit did it";

export const holds = (change) => change.replaced_by === null && change.withdrawn_at === null;

/** The color of a change: of its direction when proven, else of what is in doubt. */
export const tone = (change) =>
  ({ unconfirmed: "inconclusive", surroundings: "environment", drift: "unchanged" })[change.status] ??
  (change.effect > 0 ? "regressed" : "improved");

/** Shapes of the plot; a change whose commit is not shown has none. `place` is where `trend.js` puts commits. */
export function changeShapes(changes, place, theme) {
  return changes.filter(holds).flatMap((change) => {
    const at = place.before(change);
    if (at === null) return [];
    const color = theme[tone(change)];
    const { dash, width } = LOOKS[change.status];
    const line = { type: "line", yref: "paper", y0: 0.15, y1: 1, x0: at, x1: at, line: { color, dash, width } };
    const from = change.named ? null : place.commit(change.low_commit);
    const to = place.commit(change.commit);
    if (from === null || to === null || change.position - change.low < 2) return [line];
    const area = { type: "rect", yref: "paper", y0: 0.15, y1: 1, x0: from, x1: to, fillcolor: color, opacity: 0.1 };
    return [{ ...area, line: { width: 0 }, layer: "below" }, line];
  });
}

export function changeLegend(changes) {
  const shown = new Set(changes.filter(holds).map((change) => change.status));
  return Object.keys(LOOKS)
    .filter((status) => shown.has(status))
    .map((status) =>
      element(
        "span",
        {},
        svg(
          "svg",
          { class: "key", viewBox: "0 0 22 12", "aria-hidden": "true" },
          svg("line", { class: `change ${status}`, x1: 11, x2: 11, y1: -1, y2: 13 }),
        ),
        `change point, ${status}`,
      ),
    );
}

/** A link to the series with the change in short, for the overview. */
export function changeMark(change, href) {
  return element(
    "a",
    {
      class: `change-mark tone-${tone(change)}`,
      href,
      title: `change point, ${change.status}: ${LOOKS[change.status].meaning}`,
    },
    icon(tone(change)),
    element("span", { text: `${percent(change.effect, 1)} at ${shortSha(change.commit)}` }),
  );
}

/** Newest first; `drift` notices are rows like the others. */
export function changesTable(changes, drift, series) {
  const notices = drift.map((one) => ({ ...one, status: "drift", low_commit: one.since_commit }));
  const rows = [...changes.filter(holds), ...notices].sort((one, two) => two.said_at.localeCompare(one.said_at));
  return table(columns(series), rows, `Change points of ${series.case}, newest first`, "changes");
}

function columns(series) {
  return [
    { label: "Status", kind: "half", cell: statusBadge },
    { label: "Commit", cell: (change) => commitCell(change, series) },
    { label: "Effect", kind: "num strong half", cell: (change) => percent(change.effect) },
    {
      label: "Interval",
      kind: "num half",
      cell: (change) =>
        change.interval_low === null || change.interval_low === undefined
          ? null
          : interval(change.interval_low, change.interval_high),
    },
    {
      label: "Said",
      kind: "half",
      cell: ({ said_at: at }) => element("time", { class: "nowrap", datetime: at, title: stamp(at), text: day(at) }),
    },
    {
      label: "Job",
      kind: "half",
      cell: (change) => (change.job_id ? element("a", { href: `/jobs/${change.job_id}`, text: "its pairs" }) : null),
    },
    { label: "Alert", kind: "half", cell: alertCell },
  ];
}

function statusBadge(change) {
  const badge = verdictBadge(tone(change));
  badge.lastChild.textContent = change.status;
  badge.title = LOOKS[change.status]?.meaning ?? DRIFT;
  return badge;
}

/** The commit, or the commits of which one did it; both ends link to their comparison. */
function commitCell(change, series) {
  const query = new URLSearchParams({
    repository: series.repository,
    base: change.low_commit,
    head: change.commit,
  });
  const text = change.named
    ? shortSha(change.commit)
    : `after ${shortSha(change.low_commit)}, up to ${shortSha(change.commit)}`;
  return element(
    "div",
    { class: "commit-wide" },
    element("a", { class: "mono", href: `/compare?${query}`, text }),
    element("div", { class: "sub", text: (change.named && change.subject) || "" }),
  );
}

function alertCell(change) {
  if (!change.alert_id) return null;
  return element("a", { href: `/alerts/${change.alert_id}` }, alertStateBadge(change.alert_state));
}
