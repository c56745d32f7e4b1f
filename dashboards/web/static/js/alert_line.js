// An alert in one line, and its state as a badge.

import { element, icon } from "./dom.js";
import { ago, percent, plural, shortSha, stamp } from "./format.js";

export const STATES = ["open", "acknowledged", "expected", "fixed", "invalid"];
const ICONS = { open: "regressed", acknowledged: "pending", expected: "unchanged", fixed: "done", invalid: "canceled" };
const TONES = { open: "regressed", acknowledged: "inconclusive", expected: "unchanged", fixed: "done", invalid: "canceled" };

export const alertTitle = (alert) =>
  `${alert.group}: ${alert.kind === "numerics" ? "wrong numbers" : `slower, ${percent(worstEffect(alert))} at most`}`;

export function alertStateBadge(state) {
  return element(
    "span",
    { class: `badge tone-${TONES[state] ?? "pending"}` },
    icon(ICONS[state] ?? "pending"),
    element("span", { text: state }),
  );
}

/** The commits or the pull request, with the page that compares them. */
export function changeLink(alert) {
  const query = new URLSearchParams({ repository: alert.repository, base: alert.base, head: alert.head });
  return element("a", {
    class: "mono",
    href: `/compare?${query}`,
    text: `${shortSha(alert.base)}…${shortSha(alert.head)}`,
  });
}

export function alertLine(alert) {
  const where = alert.pull_request ? `pull request ${alert.pull_request}` : "default branch";
  return element(
    "div",
    { class: "job-line" },
    element("div", {}, alertStateBadge(alert.state)),
    element(
      "div",
      {},
      element("a", { class: "strong", href: `/alerts/${alert.id}`, text: alertTitle(alert) }),
      element(
        "div",
        { class: "small muted" },
        changeLink(alert),
        element("span", {
          text: ` · ${alert.repository} · ${where} · ${plural(alert.cases.length, "case")}${alert.assignee ? ` · ${alert.assignee}` : ""}`,
        }),
      ),
    ),
    element("time", {
      class: "small muted nowrap",
      datetime: alert.created_at,
      title: stamp(alert.created_at),
      text: ago(alert.created_at),
    }),
  );
}

function worstEffect(alert) {
  const effects = alert.cases.map((one) => one.effect).filter((effect) => effect !== null);
  return effects.length ? Math.max(...effects) : null;
}
