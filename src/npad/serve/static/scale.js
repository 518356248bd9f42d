// Scales and axes of the small charts.

import { set, svg } from "./dom.js";

const WIDEST = 620;

/** Size a picture to its column of the page; return the inside of its axes. */
export function box(picture, height, right) {
  const width = Math.min(WIDEST, Math.max(280, picture.parentElement.clientWidth));
  set(picture, { width, height, viewBox: `0 0 ${width} ${height}` });
  return { left: 46, right: width - right, top: 32, bottom: height - 48 };
}

export function linear([low, high], [from, to]) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

export function logarithmic([low, high], range) {
  const scale = linear([Math.log(low), Math.log(high)], range);
  return (value) => scale(Math.log(value));
}

/** About `n` round values between low and high. */
export function ticks([low, high], n = 5) {
  const rough = (high - low) / n || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => power * factor >= rough);
  const values = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) {
    values.push(Number((i * step).toPrecision(12)));
  }
  return values;
}

/** Values 1, 2 and 5 times powers of ten, thinned to powers alone where they would crowd. */
export function logTicks([low, high], pixels) {
  const factors = pixels / Math.log10(high / low) < 130 ? [1] : [1, 2, 5];
  const values = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
    values.push(...factors.map((factor) => factor * power));
  }
  return values.filter((value) => value >= low && value <= high);
}

/** Move positions apart until neighbours are `gap` apart, keeping their order and the bounds. */
export function spread(positions, gap, [low, high]) {
  const order = positions.map((_, i) => i).sort((a, b) => positions[a] - positions[b]);
  const placed = [...positions];
  let edge = low;
  for (const i of order) edge = (placed[i] = Math.max(placed[i], edge)) + gap;
  edge = high;
  for (const i of order.reverse()) edge = (placed[i] = Math.min(placed[i], edge)) - gap;
  return placed;
}

/** Axes with ticks: `x` and `y` are {scale, values, name, label}. */
export function axes({ left, right, top, bottom }, x, y) {
  const group = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const value of y.values) {
    const at = y.scale(value);
    group.append(
      svg("line", { x1: left, x2: right, y1: at, y2: at, class: "grid" }),
      svg("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, y.label(value)),
    );
  }
  for (const value of x.values) {
    const at = x.scale(value);
    group.append(
      svg("line", { x1: at, x2: at, y1: bottom, y2: bottom + 4, class: "tick" }),
      svg("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, x.label(value)),
    );
  }
  group.append(
    svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "tick" }),
    svg("text", { x: right, y: bottom + 36, "text-anchor": "end", class: "name" }, x.name),
    svg("text", { x: left, y: top - 12, "text-anchor": "start", class: "name" }, y.name),
  );
  return group;
}
