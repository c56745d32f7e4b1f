// What a plot shows, as files: CSV made from the rows of its table, JSON straight from the API.

import { element, icon } from "./dom.js";

/** A link that saves `rows()` as CSV with `columns` ([name, value of a row]); made when it is followed. */
export function csvLink(filename, columns, rows) {
  const link = element("a", { class: "button quiet", href: "#", download: filename }, icon("download"), "CSV");
  link.addEventListener("click", () => {
    const blob = new Blob([csv(columns, rows())], { type: "text/csv;charset=utf-8" });
    link.href = URL.createObjectURL(blob);
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  });
  return link;
}

export const jsonLink = (url) => element("a", { class: "button quiet", href: url }, icon("download"), "JSON");

export function csv(columns, rows) {
  const lines = [columns.map(([name]) => cell(name)).join(",")];
  for (const row of rows) lines.push(columns.map(([, value]) => cell(value(row))).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

/** Quote a cell; text that a spreadsheet would run as a formula gets an apostrophe in front. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = String(value);
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
