// The staircase: the best clean log-probability against model calls, as chains end, and what other
// strategies reach for what they cost.

import { ruler, svg } from "./dom.js";
import { axes, box, linear, logarithmic, logTicks, spread, ticks } from "./scale.js";

const HEIGHT = 320;
const BESIDE = 26; // pixels between the axes and the names, and at the right of those

/**
 * Draw the staircase.
 *
 * @param {SVGElement} picture
 * @param {Run} run
 * @param {{name, logProb, search, proven}[]} others other strategies' results
 */
export function showStaircase(picture, run, others) {
  picture.replaceChildren();
  const references = others
    .filter((other) => Number.isFinite(other.logProb))
    .map((other) => ({ ...other, calls: Math.max(1, other.search) }));
  const steps = stairs(run);
  if (steps.length === 0) return;
  const optimum = references.find((reference) => reference.proven);
  const calls = [...steps, ...references].map((point) => point.calls);
  const heights = [...steps, ...references].map((point) => point.logProb);
  const [low, high] = [Math.min(...heights), Math.max(...heights)];
  const room = Math.max(0.25, 0.14 * (high - low));
  const xs = [Math.max(1, Math.min(...calls) * 0.8), Math.max(...calls) * 1.15];
  const ys = [low - room, Math.min(0, high + room)];
  const names = [run.title, ...references.map(({ name }) => name)];
  const frame = box(picture, HEIGHT, Math.max(...names.map(ruler(picture))) + BESIDE);
  const x = logarithmic(xs, [frame.left, frame.right]);
  const y = linear(ys, [frame.bottom, frame.top]);
  picture.append(
    axes(
      frame,
      {
        scale: x,
        values: logTicks(xs, frame.right - frame.left),
        name: "model calls",
        label: (value) => value.toLocaleString("en"),
      },
      {
        scale: y,
        values: ticks(ys),
        name: "best clean log p",
        label: (value) => String(value).replace("-", "−"),
      },
    ),
  );
  if (optimum) {
    const at = y(optimum.logProb).toFixed(1);
    picture.append(
      svg("line", { class: "optimum", x1: frame.left, x2: frame.right, y1: at, y2: at }),
    );
  }
  picture.append(svg("path", { class: "stairs", d: path(steps, x, y) }));
  const last = steps.at(-1);
  const points = [
    ...references.map((reference) => ({
      ...reference,
      kind: reference.proven ? "proven" : "reference",
    })),
    { ...last, name: run.title, kind: "winner" },
  ];
  label(picture, points, x, y, frame);
}

/** The points where the best output changed, and the end of the search. */
function stairs(run) {
  const possible = run.bests.filter((best) => Number.isFinite(best.log_prob));
  const steps = possible.map((best) => ({
    calls: Math.max(1, best.calls),
    logProb: best.log_prob,
  }));
  if (run.done && steps.length) {
    const { calls, logProb: height } = steps.at(-1);
    steps.push({ calls: Math.max(run.done.calls.search, calls), logProb: height });
  }
  return steps;
}

function path(steps, x, y) {
  const [first, ...rest] = steps;
  const moves = rest.map((step) => `H${x(step.calls).toFixed(1)}V${y(step.logProb).toFixed(1)}`);
  return `M${x(first.calls).toFixed(1)},${y(first.logProb).toFixed(1)}${moves.join("")}`;
}

/** Mark points, with their names in a column at the right, joined by thin lines. */
function label(picture, points, x, y, { right, top, bottom }) {
  const heights = spread(
    points.map((point) => y(point.logProb)),
    19,
    [top, bottom],
  );
  points.forEach((point, i) => {
    const [cx, cy] = [x(point.calls), y(point.logProb)];
    const [at, left] = [heights[i], right + 18];
    picture.append(
      svg("path", {
        class: "leader",
        d: `M${(cx + 7).toFixed(1)},${cy.toFixed(1)}H${right}L${left - 4},${at.toFixed(1)}`,
      }),
      svg("circle", { class: point.kind, cx: cx.toFixed(1), cy: cy.toFixed(1), r: 5.5 }),
      svg("text", { class: `label ${point.kind}`, x: left, y: (at + 4).toFixed(1) }, point.name),
    );
  });
}
