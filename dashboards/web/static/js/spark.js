// Sparklines: the last usable values as a line, the newest as a dot.

import { svg } from "./dom.js";

const WIDTH = 112;
const HEIGHT = 30;
const PAD = 4;

/** Draw `values`, oldest first. */
export function sparkline(values, label) {
  const drawing = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  if (values.length === 0) return drawing;
  const [low, high] = spread(values);
  const step = (WIDTH - 2 * PAD) / Math.max(1, values.length - 1);
  const x = (index) => WIDTH - PAD - (values.length - 1 - index) * step;
  const y = (value) => HEIGHT - PAD - ((value - low) / (high - low)) * (HEIGHT - 2 * PAD);
  const path = values
    .map((value, index) => `${index ? "L" : "M"}${x(index).toFixed(1)} ${y(value).toFixed(1)}`)
    .join("");
  drawing.append(
    svg("path", { class: "line", d: path }),
    svg("circle", { class: "dot", cx: x(values.length - 1), cy: y(values.at(-1)), r: 2.8 }),
  );
  return drawing;
}

/** At least 4 % of the value from bottom to top: plain noise must not look like a mountain range. */
function spread(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const middle = (low + high) / 2;
  const half = Math.max((high - low) / 2, Math.abs(middle) * 0.02, Number.MIN_VALUE);
  return [middle - half, middle + half];
}
