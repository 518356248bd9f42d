// Noise schedules: σ_t as a share of σ₀, and a small curve of it.

import { svg } from "./dom.js";
import { linear } from "./scale.js";

const STEPS = 16;
const WIDTH = 220;
const HEIGHT = 74;

// Name -> [its parameter and default, the share at step t]; null where the model's entropy decides.
const SCHEDULES = {
  "1/t": [null, (t) => 1 / t],
  constant: [null, () => 1],
  power: [["p", 0.5], (t, p) => t ** -p],
  linear: [["steps", 20], (t, steps) => Math.max(0, 1 - (t - 1) / steps)],
  cosine: [["steps", 20], (t, steps) => (1 + Math.cos(Math.PI * Math.min(1, (t - 1) / steps))) / 2],
  exponential: [["decay", 0.8], (t, decay) => decay ** (t - 1)],
  "first-steps": [["n", 3], (t, n) => (t <= n ? 1 : 0)],
  adaptive: [["power", 1], null],
};

/** Split `power(p=0.7)` into {name, parameter, value}; the last two are null without brackets. */
export function parse(text) {
  const [, name, parameter, value] = /^([^(]+)(?:\((\w+)=([^)]*)\))?$/.exec(text) ?? [null, text];
  const [named = null, usual = null] = SCHEDULES[name]?.[0] ?? [];
  return { name, parameter: parameter ?? named, value: value ?? usual };
}

export const spell = (name, parameter, value) =>
  parameter === null ? name : `${name}(${parameter}=${value})`;

/** Return σ_t / σ₀ at step t, or null: unknown here. */
export function share(text, t) {
  const { name, value } = parse(text);
  const curve = SCHEDULES[name]?.[1];
  return curve ? curve(t, Number(value)) : null;
}

/** Draw σ_t over the first steps. */
export function drawSchedule(picture, text, sigma) {
  picture.replaceChildren();
  const shares = Array.from({ length: STEPS }, (_, i) => share(text, i + 1));
  const known = shares.every((value) => value !== null);
  const highest = Math.max(sigma, 0.5);
  const x = linear([1, STEPS], [4, WIDTH - 4]);
  const y = linear([0, highest], [HEIGHT - 14, 8]);
  picture.append(svg("line", { class: "tick", x1: 4, x2: WIDTH - 4, y1: y(0), y2: y(0) }));
  if (known) {
    const points = shares.map(
      (value, i) => `${x(i + 1).toFixed(1)},${y(sigma * value).toFixed(1)}`,
    );
    picture.append(svg("polyline", { class: "curve", points: points.join(" ") }));
    picture.append(...points.map((point) => dot(point)));
  }
  const caption = known ? `σ over steps 1 to ${STEPS}` : "σ follows the model’s uncertainty";
  picture.append(svg("text", { x: WIDTH - 4, y: HEIGHT - 2, "text-anchor": "end" }, caption));
  const spoken = known
    ? `σ falls from ${(sigma * shares[0]).toFixed(2)} at step 1 to ${(sigma * shares[STEPS - 1]).toFixed(2)} at step ${STEPS}`
    : caption;
  picture.setAttribute("aria-label", spoken);
}

function dot(point) {
  const [cx, cy] = point.split(",");
  return svg("circle", { class: "dot", cx, cy, r: 1.8 });
}
