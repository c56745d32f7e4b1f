// Numbers, times and names as text. Units come with the data; nothing here converts one into another.

const DASH = "–";
const dateTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const dayOnly = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

/** Four significant digits, as in the table of the command line. */
export function number(value) {
  if (value === null || value === undefined) return DASH;
  const text = Number(value).toPrecision(4);
  return text.includes("e") ? Number(value).toExponential(3) : text;
}

export const quantity = (value, unit) => (value === null || value === undefined ? DASH : `${number(value)} ${unit}`);

/** A ratio - 1 as a signed percentage. */
export function percent(ratio, digits = 2) {
  if (ratio === null || ratio === undefined) return DASH;
  const shown = (100 * ratio).toFixed(digits);
  const sign = Number(shown) === 0 ? "" : ratio > 0 ? "+" : "−";
  return `${sign}${shown.replace("-", "")} %`;
}

export function interval(low, high, digits = 2) {
  if (low === null || low === undefined || high === null || high === undefined) return DASH;
  return `${percent(low, digits).replace(" %", "")} … ${percent(high, digits)}`;
}

export const shortSha = (sha) => (sha ? sha.slice(0, 9) : DASH);

export const stamp = (iso) => (iso ? dateTime.format(new Date(iso)) : DASH);
export const day = (iso) => (iso ? dayOnly.format(new Date(iso)) : DASH);

/** How long ago, in one unit: "3 min ago". */
export function ago(iso, now = Date.now()) {
  if (!iso) return DASH;
  const elapsed_s = Math.max(0, (now - new Date(iso).getTime()) / 1000);
  if (elapsed_s < 60) return "just now";
  for (const [size_s, limit_s, name] of [
    [60, 3600, "min"],
    [3600, 86400, "h"],
    [86400, 30 * 86400, "d"],
  ]) {
    if (elapsed_s < limit_s) return `${Math.floor(elapsed_s / size_s)} ${name} ago`;
  }
  return day(iso);
}

export function duration(elapsed_s) {
  if (elapsed_s === null || elapsed_s === undefined || Number.isNaN(elapsed_s)) return DASH;
  if (elapsed_s < 10) return `${elapsed_s.toFixed(1)} s`;
  if (elapsed_s < 60) return `${Math.round(elapsed_s)} s`;
  const minutes = Math.floor(elapsed_s / 60);
  const rest = Math.round(elapsed_s % 60);
  return minutes < 60
    ? `${minutes} min ${String(rest).padStart(2, "0")} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const secondsBetween = (from, to) => (new Date(to ?? Date.now()).getTime() - new Date(from).getTime()) / 1000;

export const words = (code) => (code ?? "").replaceAll("_", " ");

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
