// The attention of one output: a row per token of the output, a column per token of the source.

import { html, ruler, set, svg, table, vary } from "./dom.js";
import { piece } from "./words.js";

const CELLS = [18, 30]; // pixels, at least and at most
const GAP = 2;

/** Draw the attention of a hypothesis, and write it as a table; without any, there is no section. */
export function showAttention({ section, picture, numbers }, run, hypothesis) {
  const weights = hypothesis?.attention;
  picture.replaceChildren();
  numbers.replaceChildren();
  section.hidden = !weights;
  if (!weights) return;
  const source = run.start.source.map(piece);
  const target = [...hypothesis.tokens.map(piece), "end"].slice(0, weights.length);
  const measure = ruler(picture);
  const left = Math.max(...target.map(measure)) + 12;
  const top = Math.max(...source.map(measure)) * 0.72 + 16;
  const room = picture.parentElement.clientWidth - left - 24;
  const cell = Math.min(CELLS[1], Math.max(CELLS[0], Math.floor(room / source.length)));
  const width = left + source.length * cell + 0.72 * measure(source.at(-1)) + 12;
  const height = top + target.length * cell + 4;
  set(picture, {
    viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`,
    width: Math.ceil(width),
    height: Math.ceil(height),
  });
  source.forEach((word, j) => {
    const [x, y] = [left + (j + 0.5) * cell, top - 8];
    picture.append(svg("text", { x, y, transform: `rotate(-45 ${x} ${y})` }, word));
  });
  target.forEach((word, i) => {
    const y = top + i * cell;
    picture.append(svg("text", { x: left - 8, y: y + cell / 2 + 4, "text-anchor": "end" }, word));
    weights[i].slice(0, source.length).forEach((weight, j) => {
      const square = svg(
        "rect",
        { x: left + j * cell, y, width: cell - GAP, height: cell - GAP, rx: 3, class: "cell" },
        svg("title", {}, `${word} ← ${source[j]}: ${percent(weight)}`),
      );
      picture.append(vary(square, "--share", `${Math.round(100 * weight)}%`));
    });
  });
  const rows = target.map((word, i) => [
    word,
    ...source.map((_, j) => percent(weights[i][j] ?? 0)),
  ]);
  numbers.append(table("Attention in percent, output by source", ["output", ...source], rows));
}

const percent = (weight) => `${Math.round(100 * weight)} %`;
