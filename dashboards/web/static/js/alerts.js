// The list of alerts: newest first, a page at a time.

import { alertLine, STATES } from "./alert_line.js";
import { get } from "./api.js";
import { byId, choices, element, empty, failure, loading, show } from "./dom.js";

const PAGE = 30;
const asked = new URLSearchParams(location.search).get("state");
const state = { alerts: [], cursor: null, filter: asked === null ? "open" : asked };

async function start() {
  const options = [["", "All"], ...STATES.map((one) => [one, one[0].toUpperCase() + one.slice(1)])];
  show(
    byId("alerts-tools"),
    choices("State", options, state.filter, (value) => {
      state.filter = value;
      history.replaceState(null, "", `?state=${value}`);
      reload();
    }),
  );
  await reload();
}

async function reload() {
  loading(byId("alerts-body"));
  state.alerts = [];
  state.cursor = null;
  await more();
}

async function more() {
  try {
    const page = await get("/alerts", { state: state.filter, limit: PAGE, cursor: state.cursor });
    state.alerts.push(...page.items);
    state.cursor = page.next_cursor;
    render();
  } catch (error) {
    failure(byId(state.alerts.length ? "alerts-more" : "alerts-body"), error, "The alerts could not be loaded");
  }
}

function render() {
  const body = byId("alerts-body");
  if (state.alerts.length) show(body, ...state.alerts.map(alertLine));
  else empty(body, state.filter ? `No alert is ${state.filter}` : "No alerts yet");
  show(
    byId("alerts-more"),
    state.cursor
      ? element("button", { type: "button", class: "button", text: "Older alerts", on: { click: more } })
      : null,
  );
}

start();
