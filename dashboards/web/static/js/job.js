// One job, live: its steps, pairs, log and verdicts, kept up to date by server-sent events.

import { apiUrl, followJob, get, post } from "./api.js";
import { byId, element, failure, loading, orphanedNote, show, toast } from "./dom.js";
import { jsonLink } from "./download.js";
import { ago, duration, secondsBetween, shortSha, stamp } from "./format.js";
import { jobTitle } from "./job_line.js";
import { kernelNotes, kernelTable, kernelTools } from "./kernels.js";
import { pairDots } from "./pairs.js";
import { stackTables, stackTools } from "./stack_table.js";
import { stepList } from "./steps.js";
import { verdictTable, verdictTools } from "./verdict_table.js";
import { stateBadge } from "./verdict.js";

const TERMINAL = new Set(["done", "failed", "canceled", "expired"]);
const KINDS = ["stage", "pair", "log", "verdict", "resumed", "baseline_failed", "cancel_requested", "end"];
const LOG_LINES = 400;
const REFRESH_MS = 250;
const POLL_MS = 3000;
const jobId = byId("job").dataset.jobId;
const known = { job: null, starts: new Map(), pairs: new Map(), log: [], events: new Set(), kernels: new Set() };
let stopFollowing = () => {};
let pending = null;

async function start() {
  loading(byId("measurements"));
  try {
    known.job = await get(`/jobs/${encodeURIComponent(jobId)}`);
  } catch (error) {
    failure(byId("job"), error, "This job could not be loaded");
    return;
  }
  await refreshPairs();
  renderJob();
  await renderResults();
  stopFollowing = followJob(jobId, KINDS, receive, connection);
  setInterval(tick, 1000);
}

/** An event may come twice after a reconnect; it counts once. */
function receive(event) {
  if (event.id && known.events.has(event.id)) return;
  if (event.id) known.events.add(event.id);
  const { payload, measurement_id: measurement } = event;
  if (event.kind === "stage" && payload.stage)
    startsOf(measurement).push({ stage: payload.stage, at: event.at, detail: payload.detail ?? "" });
  if (event.kind === "log") addLog(payload.text ?? "");
  if (event.kind === "end" && measurement === null) ended();
  refreshSoon();
}

function startsOf(measurement) {
  if (!known.starts.has(measurement)) known.starts.set(measurement, []);
  return known.starts.get(measurement);
}

function connection(state) {
  const live = byId("job-live");
  if (known.job && TERMINAL.has(known.job.state)) live.textContent = "";
  else
    live.textContent = { open: "live", lost: "connection lost, trying again", closed: "asking every few seconds" }[
      state
    ];
  if (state === "closed") poll();
}

/** Without a stream (a proxy that does not pass it, a server whose reading needs a token) the job is asked for. */
function poll() {
  if (TERMINAL.has(known.job.state)) return;
  refreshSoon();
  setTimeout(poll, POLL_MS);
}

function ended() {
  stopFollowing();
  byId("job-live").textContent = "";
}

/** Many events at once ask the API once. */
function refreshSoon() {
  pending ??= setTimeout(async () => {
    pending = null;
    try {
      known.job = await get(`/jobs/${encodeURIComponent(jobId)}`);
      await refreshPairs();
      show(byId("job-problem"));
      renderJob();
      await renderResults();
    } catch (error) {
      failure(byId("job-problem"), error, "The job could not be brought up to date");
    }
  }, REFRESH_MS);
}

async function refreshPairs() {
  await Promise.all(
    known.job.measurements
      .filter(({ progress }) => progress.pairs_done > 0)
      .map(async ({ id }) => {
        known.pairs.set(id, (await get(`/measurements/${id}/pairs`)).pairs);
      }),
  );
}

function renderJob() {
  const { job } = known;
  document.title = `${jobTitle(job)} · s2bench`;
  byId("job-title").textContent = jobTitle(job);
  renderTools();
  renderFacts();
  renderMeasurements();
}

function renderTools() {
  const { job } = known;
  const tools = byId("job-tools");
  if (TERMINAL.has(job.state)) {
    show(tools, stateBadge(job.state));
    return;
  }
  const cancel = element("button", {
    type: "button",
    class: "button danger",
    disabled: job.cancel_requested,
    text: job.cancel_requested ? "Canceling" : "Cancel",
  });
  cancel.addEventListener("click", () => requestCancel(cancel));
  const row = element("div", { class: "row" }, stateBadge(job.state), cancel);
  if (tools.textContent !== row.textContent) show(tools, row);
}

async function requestCancel(button) {
  button.disabled = true;
  try {
    await post(`/jobs/${encodeURIComponent(jobId)}/cancel`);
    show(byId("job-problem"));
    toast("The job is being canceled");
    refreshSoon();
  } catch (error) {
    button.disabled = false;
    failure(byId("job-problem"), error, "The job was not canceled");
  }
}

function renderFacts() {
  const { job } = known;
  const commit = (sha, asked) => [
    element("span", { class: "mono", title: sha ?? "", text: sha ? shortSha(sha) : asked }),
    sha && !sha.startsWith(asked) ? element("span", { class: "muted", text: ` ${asked}` }) : null,
  ];
  const facts = [
    ["Commit", [...commit(job.commit, job.requested_commit), job.orphaned ? orphanedNote() : null]],
    ["Baseline", commit(job.baseline, job.requested_baseline)],
    ["Repository", [job.repository]],
    ["Cases", [element("span", { class: "mono", text: job.cases })]],
    [job.kind === "stack" ? "Rounds" : "Pairs", [`at most ${job.max_pairs}`]],
    job.pull_request ? ["Pull request", [`#${job.pull_request}`]] : null,
    job.reason && job.reason !== jobTitle(job) ? ["Reason", [job.reason]] : null,
    ["Asked", [element("time", { datetime: job.created_at, title: stamp(job.created_at), text: ago(job.created_at) })]],
    job.finished_at ? ["Took", [duration(secondsBetween(job.created_at, job.finished_at))]] : null,
    job.kind === "compare" && job.state === "done" && job.commit && job.baseline ? ["Compare", [compareLink(job)]] : null,
  ].filter(Boolean);
  show(
    byId("job-facts"),
    element(
      "dl",
      { class: "facts" },
      ...facts.map(([name, nodes]) => element("div", {}, element("dt", { text: name }), element("dd", {}, ...nodes))),
    ),
    toldBelow(job) ? null : errorBox(job.error),
  );
}

/** A job carries the error of its first failed measurement; it is shown once, where it happened. */
const toldBelow = (job) =>
  !job.error || job.measurements.some((measurement) => measurement.error?.code === job.error.code);

function compareLink(job) {
  const query = new URLSearchParams({ repository: job.repository, base: job.baseline, head: job.commit });
  return element("a", { href: `/compare?${query}`, text: "forest plot and samples" });
}

/** A card is made anew only when its data changed: a hover or the keyboard's focus in it is not disturbed. */
function renderMeasurements() {
  const target = byId("measurements");
  known.job.measurements.forEach((measurement, index) => {
    const data = JSON.stringify([measurement, known.pairs.get(measurement.id), known.starts.get(measurement.id)]);
    const old = byId(`m-${measurement.id}`);
    if (old?.shownData === data) return;
    const card = measurementCard(measurement);
    card.shownData = data;
    if (old) old.replaceWith(card);
    else {
      if (index === 0) show(target);
      target.append(card);
    }
  });
}

/** Running steps count their seconds. */
function tick() {
  for (const measurement of known.job.measurements) {
    if (TERMINAL.has(measurement.state)) continue;
    byId(`m-${measurement.id}`)?.querySelector(".steps").replaceWith(steps(measurement));
  }
}

const steps = (measurement) => stepList(measurement, known.starts.get(measurement.id) ?? [], known.job);

function measurementCard(measurement) {
  const over = TERMINAL.has(measurement.state);
  const pairs = known.pairs.get(measurement.id) ?? [];
  const where = [
    measurement.device,
    measurement.worker && `on ${measurement.worker}`,
    measurement.sandbox && sandboxWords(measurement.sandbox),
    measurement.attempt > 1 ? `attempt ${measurement.attempt}` : null,
  ];
  return element(
    "section",
    { class: "card", id: `m-${measurement.id}`, "aria-label": `Measurement on ${measurement.device_class}` },
    element(
      "div",
      { class: "card-head" },
      element("h2", { text: measurement.device_class }),
      element(
        "div",
        { class: "row" },
        element("span", { class: "small muted", text: where.filter(Boolean).join(" · ") }),
        stateBadge(measurement.state),
      ),
    ),
    element(
      "div",
      { class: "card-body stack" },
      !measurement.served && measurement.state === "queued"
        ? element("p", {
            class: "notice",
            text: "No live worker serves this device class; the job waits until one does.",
          })
        : null,
      steps(measurement),
      known.job.kind !== "stack" && (pairs.length || measurement.state === "measuring") ? pairDots(pairs, measurement.progress.budget, over) : null,
      measurement.error ? errorBox(measurement.error) : null,
    ),
  );
}

const sandboxWords = (sandbox) => (sandbox === "none" ? "no sandbox" : `${sandbox} sandbox`);

function errorBox(error) {
  return element(
    "div",
    { class: "error", role: "alert" },
    element("h3", { text: error.stage ? `${error.code}, at ${error.stage}` : error.code }),
    element("p", { text: error.message }),
    error.log_tail ? element("pre", { class: "log", tabindex: "0", text: error.log_tail }) : null,
  );
}

async function renderResults() {
  await renderVerdicts();
  await renderKernels();
}

async function renderVerdicts() {
  if (!known.job.measurements.some(({ state }) => TERMINAL.has(state))) return;
  const { rows } = await get(`/jobs/${encodeURIComponent(jobId)}/verdicts`);
  byId("verdicts").hidden = rows.length === 0;
  if (rows.length === 0) return;
  show(byId("verdicts-body"), element("div", { class: "table-box" }, verdictTable(rows)));
  show(
    byId("verdicts-tools"),
    jsonLink(apiUrl(`/jobs/${encodeURIComponent(jobId)}/verdicts`)),
    ...verdictTools(rows, `job-${jobId}.csv`),
  );
  if (known.job.kind !== "compare") await renderCommits(rows);
}

/** What each commit of a stack did, or the one that a bisection found; the whole is the line in the verdicts. */
async function renderCommits(wholes) {
  const path = `/jobs/${encodeURIComponent(jobId)}/attribution`;
  const { rows } = await get(path);
  byId("commits").hidden = rows.length === 0;
  show(byId("commits-body"), ...stackTables(rows, wholes));
  show(byId("commits-tools"), jsonLink(apiUrl(path)), ...stackTools(rows, `commits-${jobId}.csv`));
}

/** Profiles follow the pairs and never change again: each measurement is asked once it has ended. */
async function renderKernels() {
  for (const { id, device_class: device, state } of known.job.measurements) {
    if (!TERMINAL.has(state) || known.kernels.has(id)) continue;
    known.kernels.add(id); // before the answer: two calls must not both show it
    const path = `/measurements/${id}/kernels`;
    const found = await get(path).catch((error) => {
      known.kernels.delete(id);
      throw error;
    });
    if (found.profiles.length === 0) continue;
    byId("kernels").hidden = false;
    const several = known.job.measurements.length > 1;
    const tools = found.rows.length ? kernelTools(found, apiUrl(path), `kernels-${id}.csv`) : [];
    if (!several) byId("kernels-tools").append(...tools);
    byId("kernels-body").append(
      element(
        "div",
        { class: "card-body" },
        several ? element("div", { class: "row" }, element("h3", { text: device }), ...tools) : null,
        ...kernelNotes(found),
      ),
      ...(found.rows.length ? [element("div", { class: "table-box" }, kernelTable(found))] : []),
    );
  }
}

/** The end of the log, scrolled along unless somebody has scrolled up to read. */
function addLog(text) {
  const log = byId("log");
  const following = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  known.log.push(...text.replace(/\n$/, "").split("\n"));
  const left = known.log.length - LOG_LINES;
  byId("log-note").textContent = left > 0 ? `the last ${LOG_LINES} of ${known.log.length} lines` : "";
  log.textContent = known.log.slice(-LOG_LINES).join("\n");
  if (following) log.scrollTop = log.scrollHeight;
}

start();
