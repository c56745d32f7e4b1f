// One alert: what it is, its cases, what happened to it, and a form to say what it is.

import { alertStateBadge, alertTitle, changeLink, STATES } from "./alert_line.js";
import { get, patch } from "./api.js";
import { breakable, byId, element, failure, loading, show, toast } from "./dom.js";
import { interval, percent, stamp, words } from "./format.js";
import { table } from "./table.js";

const alertId = byId("alert").dataset.alertId;

async function start() {
  loading(byId("cases-body"));
  try {
    render(await get(`/alerts/${encodeURIComponent(alertId)}`));
  } catch (error) {
    failure(byId("cases-body"), error, "The alert could not be loaded");
  }
}

function render(alert) {
  byId("alert-title").textContent = alertTitle(alert);
  show(byId("alert-state"), alertStateBadge(alert.state));
  show(byId("alert-change"), facts(alert), form(alert), element("div", { id: "alert-problem" }));
  show(byId("cases-body"), cases(alert));
  show(byId("events-body"), history(alert));
}

function facts(alert) {
  const where = alert.pull_request ? `pull request ${alert.pull_request}` : "the default branch";
  return element(
    "p",
    {},
    element("span", { text: `${alert.repository}, ${where}: ` }),
    changeLink(alert),
    ...commitLinks(alert),
    alert.reason ? element("span", { text: ` · ${alert.reason}` }) : null,
    alert.assignee ? element("span", { text: ` · ${alert.assignee} looks after it` }) : null,
  );
}

/** Where people read the two commits, when the repository is on GitHub. */
function commitLinks(alert) {
  const links = [
    ["before", alert.base_url],
    ["after", alert.head_url],
  ].filter(([, url]) => url?.startsWith("http"));
  return links.flatMap(([text, href]) => [
    element("span", { text: " · " }),
    element("a", { href, rel: "noreferrer", text: `commit ${text}` }),
  ]);
}

function form(alert) {
  const options = STATES.map((one) => element("option", { value: one, text: one, selected: one === alert.state }));
  const state = element("select", { class: "field" }, ...options);
  const reason = element("input", { class: "field", type: "text", maxlength: 2000, value: alert.reason ?? "" });
  const assignee = element("input", { class: "field", type: "text", maxlength: 250, value: alert.assignee ?? "" });
  const labeled = (text, input) => element("label", { class: "labeled" }, element("span", { text }), input);
  const made = element(
    "form",
    { class: "row" },
    labeled("State", state),
    labeled("Reason", reason),
    labeled("Assignee", assignee),
    element("button", { type: "submit", class: "button", text: "Save" }),
  );
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    const body = { state: state.value, reason: reason.value || null, assignee: assignee.value };
    try {
      render(await patch(`/alerts/${encodeURIComponent(alertId)}`, body));
      toast("Saved");
    } catch (error) {
      failure(byId("alert-problem"), error, "This could not be saved");
    }
  });
  return made;
}

function cases(alert) {
  const columns = [
    { label: "Case", cell: (row) => breakable(row.case), kind: "mono" },
    { label: "Device class", cell: (row) => row.device_class },
    { label: "Effect", cell: (row) => percent(row.effect), kind: "num half" },
    { label: "Interval", cell: (row) => interval(row.interval_low, row.interval_high), kind: "num half" },
    { label: "", cell: (row) => (row.recovered ? "recovered" : "") },
  ];
  return table(columns, alert.cases, "Cases of this alert");
}

function history(alert) {
  const columns = [
    { label: "When", cell: (row) => stamp(row.at) },
    { label: "What", cell: (row) => words(row.kind) },
    { label: "Who", cell: (row) => row.actor },
    {
      label: "Why",
      cell: (row) =>
        row.job_id
          ? element("a", { href: `/jobs/${row.job_id}`, text: "job" })
          : (row.payload.reason ?? row.payload.assignee ?? ""),
    },
  ];
  return table(columns, alert.events, "What happened to this alert");
}

start();
