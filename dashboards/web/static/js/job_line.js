// A job in one line: for the overview and the list of jobs.

import { element, icon } from "./dom.js";
import { ago, shortSha, stamp } from "./format.js";
import { stateBadge } from "./verdict.js";

/** What is known of a commit: its subject once a worker has seen it, else what was asked. */
export const jobTitle = (job) =>
  job.subject ?? job.reason ?? `${job.requested_commit} against ${job.requested_baseline}`;

export function jobLine(job) {
  const commits = [
    element("span", { class: "mono", text: job.commit ? shortSha(job.commit) : job.requested_commit }),
    element("span", { text: " against " }),
    element("span", { class: "mono", text: job.baseline ? shortSha(job.baseline) : job.requested_baseline }),
    element("span", { text: ` · ${job.repository} · ${job.devices.join(", ")} · ${job.cases}` }),
  ];
  return element(
    "div",
    { class: "job-line" },
    element("div", {}, stateBadge(job.state)),
    element(
      "div",
      {},
      element("a", { class: "strong", href: `/jobs/${job.id}`, text: jobTitle(job) }),
      element("div", { class: "small muted" }, ...commits),
      job.error
        ? element("div", { class: "small failure" }, icon("failed"), ` ${job.error.code}: ${job.error.message}`)
        : null,
    ),
    element("time", {
      class: "small muted nowrap",
      datetime: job.created_at,
      title: stamp(job.created_at),
      text: ago(job.created_at),
    }),
  );
}
