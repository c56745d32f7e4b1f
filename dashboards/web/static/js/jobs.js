// The list of jobs: newest first, a page at a time; refreshed while one of them is at work.

import { get } from "./api.js";
import { byId, choices, element, empty, failure, loading, show } from "./dom.js";
import { jobLine } from "./job_line.js";

const TERMINAL = new Set(["done", "failed", "canceled", "expired"]);
const REFRESH_MS = 4000;
const PAGE = 30;
const FILTERS = [
  ["", "All"],
  ["queued", "Queued"],
  ["measuring", "Measuring"],
  ["done", "Done"],
  ["failed", "Failed"],
  ["canceled", "Canceled"],
];
const state = { jobs: [], cursor: null, filter: new URLSearchParams(location.search).get("state") ?? "" };

async function start() {
  show(
    byId("jobs-tools"),
    choices("State", FILTERS, state.filter, (value) => {
      state.filter = value;
      history.replaceState(null, "", value ? `?state=${value}` : location.pathname);
      reload();
    }),
  );
  await reload();
  setInterval(refresh, REFRESH_MS);
}

async function reload() {
  const body = byId("jobs-body");
  loading(body);
  try {
    const page = await get("/jobs", { state: state.filter, limit: PAGE });
    state.jobs = page.items;
    state.cursor = page.next_cursor;
    render();
  } catch (error) {
    failure(body, error, "The jobs could not be loaded");
  }
}

/** Only the newest page is asked again, and only while somebody looks and something can change. */
async function refresh() {
  if (document.hidden || !state.jobs.some((job) => !TERMINAL.has(job.state))) return;
  const page = await get("/jobs", { state: state.filter, limit: PAGE }).catch(() => null);
  if (page === null) return;
  const fresh = new Map(page.items.map((job) => [job.id, job]));
  state.jobs = [...page.items, ...state.jobs.filter((job) => !fresh.has(job.id))];
  render();
}

async function more() {
  try {
    const page = await get("/jobs", { state: state.filter, limit: PAGE, cursor: state.cursor });
    state.jobs.push(...page.items);
    state.cursor = page.next_cursor;
    render();
  } catch (error) {
    failure(byId("jobs-more"), error, "The older jobs could not be loaded");
  }
}

function render() {
  const body = byId("jobs-body");
  if (state.jobs.length) show(body, ...state.jobs.map(jobLine));
  else if (state.filter) empty(body, `No job is ${state.filter}`);
  else
    empty(
      body,
      "No jobs yet",
      element("p", { text: "Send one:" }),
      element("pre", { class: "command welcome", text: "s2bench submit HEAD --wait" }),
    );
  show(
    byId("jobs-more"),
    state.cursor
      ? element("button", { type: "button", class: "button", text: "Older jobs", on: { click: more } })
      : null,
  );
}

start();
