// HTML and SVG elements. Strings become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

/** Set a CSS custom property: a content security policy forbids style attributes, not this. */
export function vary(element, property, value) {
  element.style.setProperty(property, value);
  return element;
}

/** Replace what an element holds, unless it reads the same: what has the focus keeps it. */
export function refill(element, ...children) {
  const filling = html("div", {}, ...children);
  if (filling.textContent !== element.textContent) element.replaceChildren(...filling.childNodes);
}

function filled(element, attributes, children) {
  set(element, attributes);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A table of texts: `header` names the columns, `rows` are lists of strings or elements. */
export function table(caption, header, rows) {
  const head = html("tr", {}, ...header.map((name) => html("th", { scope: "col" }, name)));
  const body = rows.map((cells) =>
    html(
      "tr",
      {},
      ...cells.map((cell, i) => html(i ? "td" : "th", i ? {} : { scope: "row" }, cell)),
    ),
  );
  return html(
    "table",
    {},
    html("caption", { class: "unseen" }, caption),
    html("thead", {}, head),
    html("tbody", {}, ...body),
  );
}

/** The width of texts in an element's font. */
export function ruler(element) {
  const context = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(element);
  context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  return (text) => context.measureText(text).width;
}
