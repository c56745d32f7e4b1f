// Pairs of processes as dots: filled when admitted, hollow when rejected, with the reason on hover and by keyboard.

import { element } from "./dom.js";
import { percent, plural, words } from "./format.js";

/**
 * `pairs`: {index, purpose, order, cases, canaries: [{case, admitted, reasons, log_ratio}]} as the API says; `budget` is
 * the most there may be before changes are confirmed.
 */
export function pairDots(pairs, budget, ended) {
  const first = pairs.filter((pair) => pair.purpose === "pair");
  const fresh = pairs.filter((pair) => pair.purpose !== "pair");
  const missing = ended || fresh.length ? 0 : Math.max(0, budget - first.length);
  const limit = `at most ${budget}; each case stops as soon as its evidence suffices`;
  return element(
    "div",
    { class: "stack" },
    element(
      "div",
      {},
      head("pair", first, ended || fresh.length ? null : limit),
      list("Pairs measured so far", first, missing),
    ),
    fresh.length
      ? element("div", {}, head("fresh pair", fresh, "of the cases that changed"), list("Fresh pairs", fresh, 0))
      : null,
    canaries(pairs),
  );
}

function list(label, pairs, missing) {
  const dots = pairs.map(dot);
  for (let index = 0; index < missing; index += 1)
    dots.push(element("li", {}, element("span", { class: "pair", "aria-hidden": "true" })));
  return element("ul", { class: "pairs", "aria-label": label }, ...dots);
}

/** What the same code did in both arms: the median over the pairs. Whether that is much, the verdicts say. */
function canaries(pairs) {
  const ratios = new Map();
  for (const { case: name, log_ratio: ratio } of pairs.flatMap((pair) => pair.canaries))
    if (ratio !== null) ratios.set(name, [...(ratios.get(name) ?? []), ratio]);
  if (ratios.size === 0) return null;
  const parts = [...ratios].map(([name, values]) => `${name.split("/").at(-1)} ${percent(Math.expm1(median(values)))}`);
  return element("p", { class: "small muted", text: `Canaries (the same code in both arms): ${parts.join(" · ")}` });
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function head(noun, pairs, note) {
  const kinds = pairs.map(kindOf);
  const rejected = kinds.filter((kind) => kind === "rejected").length;
  const partly = kinds.filter((kind) => kind === "partly").length;
  const parts = [
    rejected ? `${rejected} rejected` : null,
    partly ? `${partly} rejected for some cases` : null,
    note,
  ].filter(Boolean);
  return element(
    "div",
    { class: "pairs-head" },
    element("span", { class: "strong", text: plural(pairs.length, noun) }),
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
