// Plotly with the page's colors, and hover cards of our own: plain elements whose text cannot become markup.

import { element } from "./dom.js";

const SOURCE = document.documentElement.dataset.plotly;
const COLORS = [
  "surface",
  "line",
  "line-strong",
  "text",
  "muted",
  "accent",
  "second",
  "third",
  "fourth",
  "band",
  "equivalence",
  "baseline",
  "candidate",
  "improved",
  "regressed",
  "unchanged",
  "inconclusive",
  "throttled",
  "environment",
  "font",
  "mono",
];
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const coarse = window.matchMedia("(pointer: coarse)");
let plotly = null;

/**
 * Draw into `target` what `build(theme, width)` returns: {data, layout, tip}. `tip(customdata)` is the hover card of a
 * point: {title, facts: [[name, text]], later: Promise of more facts}. Drawn again when the color scheme changes.
 */
export async function draw(target, build) {
  const Plotly = await loadPlotly();
  const render = async () => {
    const theme = readTheme();
    const { data, layout, tip } = build(theme, target.clientWidth);
    await Plotly.react(target, data, { ...frame(theme), ...layout }, settings());
    attachTip(target, tip);
  };
  await render();
  watchScheme(target, render);
}

/** The zoomed range of the x axis, to put into the address; null when the whole is shown. */
export function onRange(target, listener) {
  target.on("plotly_relayout", (change) => {
    if (change["xaxis.autorange"]) listener(null);
    else if ("xaxis.range[0]" in change) listener([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
  });
}

export function axis(theme, title, more = {}) {
  return {
    title: { text: title, font: { color: theme.muted, size: 12 }, standoff: 10 },
    gridcolor: theme.line,
    linecolor: theme["line-strong"],
    zeroline: false,
    tickfont: { color: theme.muted, size: 11 },
    automargin: true,
    ...more,
  };
}

/** Plotly reads a little markup in its labels; names that come from outside must stay text. */
export const escapeLabel = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function frame(theme) {
  return {
    font: { family: theme.font, color: theme.text, size: 12 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 16, t: 12, b: 44 },
    showlegend: false,
    hovermode: "closest",
    hoverdistance: 24,
    dragmode: coarse.matches ? false : "zoom",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.muted, activecolor: theme.accent },
  };
}

function settings() {
  return {
    responsive: true,
    displaylogo: false,
    doubleClick: "reset",
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  };
}

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(COLORS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = element("script", { src: SOURCE });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => reject(new Error(`The plot library at ${SOURCE} could not be loaded.`)));
    document.head.append(script);
  });
  return plotly;
}

function watchScheme(target, render) {
  target.stopWatching?.();
  dark.addEventListener("change", render);
  target.stopWatching = () => dark.removeEventListener("change", render);
}

function attachTip(target, tip) {
  target.removeAllListeners("plotly_hover");
  target.removeAllListeners("plotly_unhover");
  const hide = () => target.querySelector(".tip")?.remove();
  hide();
  if (!tip) return;
  target.on("plotly_hover", ({ points }) => {
    hide();
    const point = points.find((candidate) => candidate.customdata !== undefined);
    if (!point) return;
    const card = tipCard(tip(point.customdata));
    target.append(card);
    place(card, target, point);
  });
  target.on("plotly_unhover", hide);
}

function tipCard({ title, facts, later }) {
  const list = element("dl");
  const add = (pairs) => {
    for (const [name, text] of pairs) list.append(element("dt", { text: name }), element("dd", { text }));
  };
  add(facts);
  later?.then(add);
  return element("div", { class: "tip", role: "tooltip" }, element("div", { class: "title", text: title }), list);
}

/** Beside the point, on the side with more room, never outside the plot. */
function place(card, target, point) {
  const x = point.xaxis._offset + point.xaxis.d2p(point.x);
  const y = point.yaxis._offset + point.yaxis.d2p(point.y);
  const left = x > target.clientWidth / 2 ? x - card.offsetWidth - 14 : x + 14;
  card.style.left = `${Math.max(4, Math.min(left, target.clientWidth - card.offsetWidth - 4))}px`;
  card.style.top = `${Math.max(0, Math.min(y - card.offsetHeight / 2, target.clientHeight - card.offsetHeight))}px`;
}
