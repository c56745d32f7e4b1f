// Building elements without HTML text: whatever comes from outside ends in textContent and cannot become markup.

import { rememberToken } from "./api.js";

const SVG = "http://www.w3.org/2000/svg";

/** Make an element; `properties` are attributes, except `class`, `text`, `on` (listeners) and `data`. */
export function element(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** An icon of the sprite in the page's base template. */
export function icon(name, extra = "") {
  return svg("svg", { class: `icon ${extra}`.trim(), "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));
}

export const byId = (id) => document.getElementById(id);

export function show(target, ...children) {
  target.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

/** Gray bars while data is on its way. */
export function loading(target) {
  show(
    target,
    element(
      "div",
      { class: "skeleton", role: "status", "aria-label": "Loading" },
      element("span"),
      element("span"),
      element("span"),
    ),
  );
}

export function empty(target, title, ...lines) {
  show(target, element("div", { class: "state" }, element("h2", { text: title }), ...lines));
}

/** An error in words, with what the server said field by field. */
export function failure(target, error, title = "This could not be loaded") {
  const details = error.details ?? [];
  show(
    target,
    element(
      "div",
      { class: "error", role: "alert" },
      element("h2", { text: title }),
      element("p", { text: error.message }),
      details.length ? element("ul", {}, ...details.map((line) => element("li", { text: line }))) : null,
      error.status === 401 || error.status === 403 ? tokenForm() : null,
    ),
  );
}

/** Asks for an access token where the server wants one, and loads the page again with it. */
function tokenForm() {
  const input = element("input", { class: "field mono", type: "password", autocomplete: "off", required: true });
  const label = element(
    "label",
    { class: "labeled" },
    element("span", { text: "Access token, kept for this tab only" }),
    input,
  );
  const form = element(
    "form",
    { class: "token" },
    label,
    element("button", { type: "submit", class: "button", text: "Use it" }),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    rememberToken(input.value.trim());
    location.reload();
  });
  return form;
}

export function toast(text) {
  const note = element("div", { class: "toast", role: "status", text });
  document.body.append(note);
  setTimeout(() => note.remove(), 2400);
}

/** A group of mutually exclusive buttons; `choose` hears the value of the one pressed. */
export function choices(label, options, selected, choose) {
  const group = element("div", { class: "choices", role: "group", "aria-label": label });
  for (const [value, text] of options) {
    const button = element("button", { type: "button", "aria-pressed": String(value === selected), text });
    button.addEventListener("click", () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      choose(value);
    });
    group.append(button);
  }
  return group;
}

/** A name with slashes, which may break after each of them rather than anywhere. */
export function breakable(name) {
  return name.split(/(?<=\/)/).flatMap((part) => [part, element("wbr")]);
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [type, listener] of Object.entries(value)) node.addEventListener(type, listener);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Said beside a commit that a force push or a deleted branch has dropped. */
export const orphanedNote = () => element("span", { class: "small muted", text: " · no longer on any branch" });
