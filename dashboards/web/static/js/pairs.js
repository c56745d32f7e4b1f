// Pairs of processes as dots: filled when admitted, hollow when rejected, with the reason on hover and by keyboard.

import { element } from "./dom.js";
import { words } from "./format.js";

/** `pairs`: {index, order, cases: [{case, admitted, reasons}]} as the API says; `budget` is the most there may be. */
export function pairDots(pairs, budget, ended) {
  const dots = pairs.map(dot);
  const left = ended ? 0 : Math.max(0, budget - pairs.length);
  for (let index = 0; index < left; index += 1)
    dots.push(element("li", {}, element("span", { class: "pair", "aria-hidden": "true" })));
  return element(
    "div",
    {},
    head(pairs, budget, ended),
    element("ul", { class: "pairs", "aria-label": "Pairs measured so far" }, ...dots),
  );
}

function head(pairs, budget, ended) {
  const kinds = pairs.map(kindOf);
  const rejected = kinds.filter((kind) => kind === "rejected").length;
  const partly = kinds.filter((kind) => kind === "partly").length;
  const parts = [
    rejected ? `${rejected} rejected` : null,
    partly ? `${partly} rejected for some cases` : null,
    ended ? null : `at most ${budget}; each case stops as soon as its evidence suffices`,
  ].filter(Boolean);
  return element(
    "div",
    { class: "pairs-head" },
    element("span", { class: "strong", text: `${pairs.length} pairs` }),
    element("span", { class: "small muted", text: parts.join(" · ") }),
  );
}

function kindOf(pair) {
  const judged = pair.cases.filter((one) => one.admitted !== null);
  if (judged.length === 0) return "measured";
  const admitted = judged.filter((one) => one.admitted).length;
  if (admitted === judged.length) return "admitted";
  return admitted === 0 ? "rejected" : "partly";
}

function dot(pair) {
  const kind = kindOf(pair);
  const text = describe(pair, kind);
  return element(
    "li",
    {},
    element("button", { type: "button", class: `pair ${kind}`, title: text, "aria-label": text }),
  );
}

function describe(pair, kind) {
  const opening = `Pair ${pair.index} (${pair.order})`;
  if (kind === "measured") return `${opening}: measured, not judged yet`;
  if (kind === "admitted") return `${opening}: admitted for every case`;
  const causes = new Map();
  for (const one of pair.cases.filter((candidate) => candidate.admitted === false)) {
    for (const reason of one.reasons.length ? one.reasons : ["the reason follows with the verdict"])
      causes.set(reason, [...(causes.get(reason) ?? []), one.case]);
  }
  const lines = [...causes].map(
    ([reason, cases]) => `${words(reason)} (${cases.length === pair.cases.length ? "every case" : cases.join(", ")})`,
  );
  return `${opening}: rejected${kind === "partly" ? " for some cases" : ""}: ${lines.join("; ")}`;
}
