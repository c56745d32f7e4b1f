// Compare: verdicts of two commits that were measured against each other; the question is in the address.

import { apiUrl, get } from "./api.js";
import { byId, element, empty, failure, loading, orphanedNote, show, svg } from "./dom.js";
import { csvLink, jsonLink } from "./download.js";
import { forestCard, forestPlot } from "./forest.js";
import { day, shortSha } from "./format.js";
import { draw } from "./plot.js";
import { SAMPLE_COLUMNS, pairTable, sampleCard, sampleRows, samplesPlot } from "./samples.js";
import { verdictTable, verdictTools } from "./verdict_table.js";
import { bySeverity, countVerdicts, verdictBadge } from "./verdict.js";

const query = new URLSearchParams(location.search);

async function start() {
  const asked = await renderQuestion();
  if (!asked) return;
  const answer = byId("answer");
  loading(answer);
  try {
    const comparison = await get("/compare", asked);
    renderAnswer(comparison, asked);
  } catch (error) {
    failure(answer, error, "These commits could not be compared");
  }
}

/** Fill the form from the address; return the question once all of it is there. */
async function renderQuestion() {
  const select = byId("repository");
  for (const name of ["base", "head"]) byId(name).value = query.get(name) ?? "";
  try {
    const { items } = await get("/repositories");
    if (items.length === 0) {
      empty(
        byId("answer"),
        "No repository is registered yet",
        element("p", { text: "The demo registers this one and measures two commits of it:" }),
        element("pre", { class: "command welcome", text: "s2bench demo" }),
      );
      return null;
    }
    select.append(
      ...items.map(({ name }) =>
        element("option", { value: name, text: name, selected: name === query.get("repository") }),
      ),
    );
  } catch (error) {
    failure(byId("answer"), error, "The repositories could not be loaded");
    return null;
  }
  const asked = { repository: query.get("repository"), base: query.get("base"), head: query.get("head") };
  if (asked.repository && asked.base && asked.head) return asked;
  empty(
    byId("answer"),
    "Which two commits?",
    element("p", { text: "Name a base and a head: branches, tags or commits of the repository." }),
  );
  return null;
}

function renderAnswer(comparison, asked) {
  const { rows, base, head } = comparison;
  const commits = element("div", { class: "pair-of-commits" }, commitCard("Before", base), commitCard("After", head));
  if (rows.length === 0) {
    const command = `s2bench submit ${shortSha(head.sha)} --baseline ${shortSha(base.sha)} --wait`;
    const note = element("div", { class: "card" });
    empty(
      note,
      "These two were never measured against each other",
      element("p", { text: "Values of different hours are not compared. To measure them in pairs:" }),
      element("pre", { class: "command welcome", text: command }),
    );
    show(byId("answer"), commits, note);
    return;
  }
  const badges = countVerdicts(rows).map(([verdict, count]) => {
    const badge = verdictBadge(verdict);
    badge.prepend(element("span", { text: String(count) }));
    return badge;
  });
  show(byId("answer"), commits, element("div", { class: "row" }, ...badges, jobLinks(comparison.job_ids)));
  byId("result").hidden = false;
  renderEffects(rows);
  show(byId("table-body"), element("div", { class: "table-box" }, verdictTable(rows)));
  show(
    byId("table-tools"),
    jsonLink(apiUrl("/compare", asked)),
    ...verdictTools(rows, `compare-${shortSha(base.sha)}-${shortSha(head.sha)}.csv`),
  );
  renderSampleChoice(rows);
}

function commitCard(label, commit) {
  return element(
    "div",
    { class: "card" },
    element("div", { class: "small muted", text: label }),
    element("div", { class: "strong", text: commit.subject ?? "subject unknown" }),
    element(
      "div",
      { class: "small muted" },
      element("span", { class: "mono", text: shortSha(commit.sha) }),
      [commit.author, commit.committed_at ? day(commit.committed_at) : null]
        .filter(Boolean)
        .map((text) => ` · ${text}`)
        .join(""),
      commit.orphaned ? orphanedNote() : null,
    ),
  );
}

function jobLinks(ids) {
  return element(
    "span",
    { class: "small muted" },
    "from ",
    ...ids.flatMap((id, index) => [
      index ? ", " : "",
      element("a", { href: `/jobs/${id}`, text: `job ${id.slice(-6)}` }),
    ]),
  );
}

async function renderEffects(rows) {
  const target = byId("effects");
  target.setAttribute("role", "img");
  target.setAttribute("aria-label", "Effect and interval per case; the table below has the values");
  try {
    await draw(target, (theme, width) => ({ ...forestPlot(rows, theme, width), tip: forestCard }));
  } catch (error) {
    failure(target, error, "The plot could not be drawn");
  }
}

function renderSampleChoice(rows) {
  const select = byId("samples-case");
  const sorted = bySeverity(rows);
  const several = new Set(rows.map((row) => row.device_class)).size > 1;
  select.append(
    ...sorted.map((row, index) =>
      element("option", { value: index, text: several ? `${row.case} · ${row.device_class}` : row.case }),
    ),
  );
  const wanted = sorted.findIndex((row) => row.case === query.get("case"));
  select.selectedIndex = Math.max(0, wanted);
  select.addEventListener("change", () => {
    query.set("case", sorted[select.selectedIndex].case);
    history.replaceState(null, "", `?${query}`);
    renderSamples(sorted[select.selectedIndex]);
  });
  renderSamples(sorted[select.selectedIndex]);
}

async function renderSamples(row) {
  const target = byId("samples");
  const path = `/measurements/${row.measurement_id}`;
  try {
    const [{ blocks }, { pairs }] = await Promise.all([
      get(`${path}/samples`, { case: row.case }),
      get(`${path}/pairs`),
    ]);
    target.setAttribute("role", "img");
    target.setAttribute("aria-label", `Samples of ${row.case} per pair; the table below has the medians`);
    await draw(target, (theme, width) => ({ ...samplesPlot(blocks, pairs, row.case, theme, width), tip: sampleCard }));
    show(byId("samples-legend"), ...sampleLegend());
    show(
      byId("samples-table"),
      pairTable(pairs, row.case),
      element(
        "div",
        { class: "row" },
        csvLink("samples.csv", SAMPLE_COLUMNS, () => sampleRows(blocks)),
        jsonLink(apiUrl(`${path}/samples`, { case: row.case })),
      ),
    );
  } catch (error) {
    for (const id of ["samples-legend", "samples-table"]) show(byId(id));
    if (error.status === 404) empty(target, "No samples were stored for this case");
    else failure(target, error, "The samples could not be loaded");
  }
}

function sampleLegend() {
  const key = (kind) =>
    svg(
      "svg",
      { class: "key", viewBox: "0 0 22 12", "aria-hidden": "true" },
      svg("circle", { class: kind, cx: 11, cy: 6, r: 4 }),
    );
  return [
    ["before", "before (baseline)"],
    ["after", "after (candidate)"],
    ["hollow", "rejected pair: not used"],
  ].map(([kind, text]) => element("span", {}, key(kind), text));
}

start();
