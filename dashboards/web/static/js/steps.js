// The steps of a measurement, with their states and how long they took, from the events of its job.

import { element, icon } from "./dom.js";
import { duration, secondsBetween, words } from "./format.js";

const TERMINAL = new Set(["done", "failed", "canceled", "expired"]);
const USUAL = ["queued", "checkout", "build", "numerics", "pairs", "confirm", "profile", "judge"];
const RARE = new Set(["confirm"]); // a step of those measurements alone in which something changed
const OF_A_STACK = ["queued", "checkout", "build", "numerics", "rounds", "judge"];
const OPTIONAL = new Set(["profile"]); // not a step of measurements from before it came
const NAMES = {
  queued: "Queued",
  checkout: "Check out",
  build: "Build",
  numerics: "Numerics",
  pairs: "Pairs",
  confirm: "Confirm",
  rounds: "Rounds",
  profile: "Profile",
  judge: "Judge",
};

/** `starts`: [{stage, at, detail}] as they happened. Steps of an earlier attempt are replaced by the newest. */
export function stepList(measurement, starts, job) {
  const ended = TERMINAL.has(measurement.state);
  const seen = new Map([["queued", { at: job.created_at, detail: "" }]]);
  for (const { stage: name, at, detail } of starts) {
    const stage = name === "prepare" ? "checkout" : name; // a worker has taken it: checking out begins
    // The same step again only tells more of itself; one that returns after another began anew.
    const last = [...seen.keys()].at(-1);
    const since = stage === last ? seen.get(stage).at : at;
    seen.delete(stage);
    seen.set(stage, { at: since, detail });
  }
  const wanted = job.kind === "stack" ? OF_A_STACK : USUAL;
  const usual = wanted.filter((stage) => seen.has(stage) || !(RARE.has(stage) || (OPTIONAL.has(stage) && ended)));
  const order = [...usual, ...[...seen.keys()].filter((stage) => !wanted.includes(stage))];
  const happened = [...seen.keys()];
  const current = seen.has(measurement.stage) ? measurement.stage : happened.at(-1);
  const items = order.map((stage) => {
    const start = seen.get(stage);
    const next = seen.get(happened[happened.indexOf(stage) + 1]);
    const state = stateOf(stage, start, current, measurement, ended);
    const until = next?.at ?? (ended ? measurement.finished_at : null);
    return step(stage, state, start, until);
  });
  return element("ol", { class: "steps", "aria-label": `Steps on ${measurement.device_class}` }, ...items);
}

function stateOf(stage, start, current, measurement, ended) {
  if (!start) return "pending";
  if (stage !== current) return "done";
  if (!ended) return stage === "queued" ? "queued" : "running";
  return measurement.state;
}

function step(stage, state, start, until) {
  const took = start ? duration(secondsBetween(start.at, until)) : "";
  const spoken = state === "pending" ? "not yet" : words(state);
  return element(
    "li",
    { class: `step tone-${state}`, "aria-current": state === "running" ? "step" : null },
    element("span", { class: "mark" }, icon(state, state === "running" ? "spin" : "")),
    element(
      "span",
      { class: "name" },
      NAMES[stage] ?? words(stage),
      element("span", { class: "visually-hidden", text: ` (${spoken})` }),
    ),
    element("span", { class: "took", text: start?.detail ? `${took} · ${start.detail}` : took }),
  );
}
