// Pictures as files, SVG or PNG, and the data of a search as JSON. A picture is read as the browser
// shows it, so that a file needs no style sheet; the policy of the page forbids images from memory,
// so the PNG is painted shape by shape.

import { html, svg } from "./dom.js";

const SCALE = 2; // pixels of a PNG per pixel on the screen
const MOST = 8192; // pixels of a PNG, at most, in each direction
const FONT = ["font-family", "font-size", "font-weight"];

/** Offer a picture as files; `describe` returns {title, description} of what it shows. */
export function offer(place, picture, name, describe) {
  const button = (kind, write) => {
    const label = `Save the ${name} as ${kind}`;
    const element = html("button", { type: "button", "aria-label": label, title: label }, kind);
    element.addEventListener("click", write);
    return element;
  };
  place.append(
    button("SVG", () => {
      const text = new XMLSerializer().serializeToString(asSvg(picture, describe()));
      download(`npad-${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
    }),
    button("PNG", () => {
      asCanvas(picture).toBlob((blob) => download(`npad-${name}.png`, blob));
    }),
  );
}

/** Save everything that the server sent of a search, and what it was compared with. */
export function saveData(run, references, beside) {
  const { text, start, options, steps, chains, bests, done } = run;
  const other = beside && { options: beside.options, done: beside.done };
  const data = { address: location.href, text, ...start, options, steps };
  Object.assign(data, { chains: [...chains.values()], bests, done, compared: references });
  const content = JSON.stringify({ ...data, beside: other ?? undefined }, null, 1);
  download("npad-search.json", new Blob([content], { type: "application/json" }));
}

function download(name, blob) {
  const address = URL.createObjectURL(blob);
  html("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** The shapes of a picture that can be seen, each with its resolved colours. */
function shapes(picture) {
  return [...picture.querySelectorAll("path, circle, rect, line, polyline, text")]
    .map((element) => ({ element, style: getComputedStyle(element) }))
    .filter(({ element, style }) => style.visibility !== "hidden" && element.checkVisibility())
    .map(({ element, style }) => ({
      element,
      style,
      fill: colour(style.fill, style.fillOpacity),
      stroke: colour(style.stroke, 1),
      opacity: opacityOf(element, picture),
    }))
    .filter(({ fill, stroke }) => fill || stroke);
}

function opacityOf(element, picture) {
  let opacity = 1;
  for (; element !== picture; element = element.parentElement) {
    opacity *= Number(getComputedStyle(element).opacity);
  }
  return opacity;
}

const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const known = new Map();

/** A colour as #rrggbbaa, whatever the style sheet mixed it from; null if it cannot be seen. */
function colour(text, opacity) {
  if (text === "none") return null;
  if (!known.has(text)) {
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = text;
    pixel.fillRect(0, 0, 1, 1);
    known.set(text, [...pixel.getImageData(0, 0, 1, 1).data]);
  }
  const [red, green, blue, alpha] = known.get(text);
  const seen = Math.round(alpha * Number(opacity));
  const parts = [red, green, blue, seen].map((part) => part.toString(16).padStart(2, "0"));
  return seen ? `#${parts.join("")}` : null;
}

const paper = () => colour(getComputedStyle(document.body).backgroundColor, 1);
const sizeOf = (picture) => ["width", "height"].map((name) => Number(picture.getAttribute(name)));

function asSvg(picture, { title, description }) {
  const [width, height] = sizeOf(picture);
  const file = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  file.append(svg("title", {}, title), svg("desc", {}, description));
  const sheet = svg("rect", { width, height });
  paintWith(sheet, "fill", paper());
  file.append(sheet);
  for (const { element, style, fill, stroke, opacity } of shapes(picture)) {
    const copy = element.cloneNode(element.tagName === "text");
    for (const name of ["class", "visibility"]) copy.removeAttribute(name);
    paintWith(copy, "fill", fill);
    paintWith(copy, "stroke", stroke);
    if (opacity < 1) copy.setAttribute("opacity", opacity);
    const names = element.tagName === "text" ? FONT : [];
    if (stroke) names.push("stroke-width", "stroke-dasharray", "stroke-linejoin");
    for (const name of names) copy.setAttribute(name, style.getPropertyValue(name));
    file.append(copy);
  }
  return file;
}

/** Set a colour without alpha and its opacity, as programs that know no CSS 4 expect. */
function paintWith(element, name, found) {
  element.setAttribute(name, found?.slice(0, 7) ?? "none");
  const opacity = found ? Number.parseInt(found.slice(7), 16) / 255 : 1;
  if (opacity < 1) element.setAttribute(`${name}-opacity`, opacity.toFixed(3));
}

function asCanvas(picture) {
  const [width, height] = sizeOf(picture);
  const scale = Math.min(SCALE, MOST / width, MOST / height);
  const canvas = html("canvas", { width: width * scale, height: height * scale });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = paper();
  context.fillRect(0, 0, width, height);
  for (const shape of shapes(picture)) paint(context, shape);
  return canvas;
}

function paint(context, { element, style, fill, stroke, opacity }) {
  context.save();
  const moved = element.transform.baseVal.consolidate()?.matrix;
  if (moved) context.transform(moved.a, moved.b, moved.c, moved.d, moved.e, moved.f);
  context.globalAlpha = opacity;
  context.fillStyle = fill;
  context.strokeStyle = stroke;
  context.lineWidth = Number.parseFloat(style.strokeWidth);
  context.lineJoin = style.strokeLinejoin;
  context.setLineDash(style.strokeDasharray.match(/[\d.]+/g)?.map(Number) ?? []);
  if (element.tagName === "text") {
    context.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    context.textAlign = { middle: "center" }[style.textAnchor] ?? style.textAnchor;
    const [x, y] = ["x", "y"].map((name) => Number(element.getAttribute(name)));
    context.fillText(element.textContent, x, y);
  } else {
    const outline = outlineOf(element);
    if (fill) context.fill(outline);
    if (stroke) context.stroke(outline);
  }
  context.restore();
}

function outlineOf(element) {
  const number = (name) => Number(element.getAttribute(name));
  const points = element.getAttribute("points");
  const outline = new Path2D(element.getAttribute("d") ?? (points ? `M${points}` : ""));
  if (element.tagName === "circle") {
    outline.arc(number("cx"), number("cy"), number("r"), 0, 2 * Math.PI);
  } else if (element.tagName === "rect") {
    const [x, y, width, height] = ["x", "y", "width", "height"].map(number);
    outline.roundRect(x, y, width, height, number("rx"));
  } else if (element.tagName === "line") {
    outline.moveTo(number("x1"), number("y1"));
    outline.lineTo(number("x2"), number("y2"));
  }
  return outline;
}
