// Tables from columns and rows; on narrow screens each row becomes a card whose cells name their columns.

import { element } from "./dom.js";

/** `columns`: {label, cell(row) -> node or text, kind: "num" | ...}. The caption is for screen readers. */
export function table(columns, rows, caption, kind = "") {
  const head = element(
    "tr",
    {},
    ...columns.map((column) =>
      element("th", { scope: "col", class: column.kind?.startsWith("num") ? "num" : null, text: column.label }),
    ),
  );
  const body = rows.map((row) => element("tr", row.attributes ?? {}, ...columns.map((column) => cell(column, row))));
  return element(
    "table",
    { class: `cards ${kind}`.trim() },
    element("caption", {}, element("span", { class: "visually-hidden", text: caption })),
    element("thead", {}, head),
    element("tbody", {}, ...body),
  );
}

function cell(column, row) {
  const content = column.cell(row);
  const blank = content === null || content === undefined || content === "";
  const classes = [column.kind, blank ? "blank" : null].filter(Boolean).join(" ");
  return element(
    "td",
    { class: classes || null, "data-label": column.label || null },
    ...(blank ? [] : [content].flat()),
  );
}
