// Geometry of the lattice: where each prefix lies. Words lie in columns, one per step; the chains that
// share a prefix are one line, as wide as they are many.

import { piece } from "./words.js";

export const WIDEST = 18; // pixels, all chains together
const NARROWEST = 1.5;
const FEW = 4; // pixels for each chain at most
const ROW = 25; // pixels of a word, above its line
const GAPS = [22, 60]; // between columns, where lines part: at least, and where there is room
const MARGIN = { left: 4, top: 2, right: 96, bottom: 12 };

export const thickness = (chains, all) =>
  Math.max(NARROWEST, (Math.min(WIDEST, FEW * all) * chains) / all);

/**
 * Place the nodes of a trie.
 *
 * @param {Trie} trie
 * @param {number} all the number of chains
 * @param {(text: string) => number} measure the width of a text in pixels
 * @param {number} room the width of the screen for it
 * @returns {{places: Map, width: number, height: number}} per node {from, to, y, thick}
 */
export function layout(trie, all, measure, room) {
  const columns = columnsOf(trie, measure, room);
  const places = new Map();
  let y = MARGIN.top;

  function place(node) {
    const { x, width } = columns[node.depth];
    const own = node.isEnd ? 0 : measure(piece(node.token ?? ""));
    const to = node.children.size ? x + width : x + own;
    const thick = thickness(node.most, all);
    const children = [...node.children.values()];
    if (children.length === 0) {
      places.set(node, { from: x, to, y: y + ROW + thick / 2, thick });
      y += ROW + thick;
    } else {
      children.forEach(place);
      const chains = children.reduce((sum, child) => sum + child.most, 0);
      const middle = children.reduce((sum, child) => sum + child.most * places.get(child).y, 0);
      places.set(node, { from: x, to, y: middle / chains, thick });
    }
  }

  place(trie.root);
  const last = columns.at(-1);
  return { places, width: last.x + last.width + MARGIN.right, height: y + MARGIN.bottom };
}

function columnsOf(trie, measure, room) {
  const widths = [0];
  for (const node of trie.nodes.values()) {
    const width = node.token === null || node.isEnd ? 0 : measure(piece(node.token));
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, width);
  }
  const words = widths.reduce((sum, width) => sum + width, MARGIN.left + MARGIN.right);
  const spare = Math.floor((room - words) / Math.max(1, widths.length - 1));
  const gap = Math.min(GAPS[1], Math.max(GAPS[0], spare));
  let x = MARGIN.left;
  return widths.map((width) => {
    const column = { x, width };
    x += width + gap;
    return column;
  });
}

/** The line of a node: a curve from its parent, then straight below its word. */
export function line({ from, to, y }, start) {
  if (start === null) return `M${from},${round(y)}H${to}`;
  const middle = (start.x + from) / 2;
  const curve = `C${round(middle)},${round(start.y)} ${round(middle)},${round(y)} ${from},${round(y)}`;
  // It starts within its parent's line, so that no seam shows between them.
  return `M${round(start.x - 1)},${round(start.y)}H${round(start.x)}${curve}H${round(Math.max(to, from + 1))}`;
}

export const round = (value) => Math.round(value * 10) / 10;

/** Where the lines of a node's children leave it: beside each other, across its own width. */
export function starts(node, places) {
  const parent = places.get(node);
  const children = [...node.children.values()];
  const total = children.reduce((sum, child) => sum + places.get(child).thick, 0);
  let y = parent.y - Math.min(total, parent.thick) / 2;
  return new Map(
    children.map((child) => {
      const share = (places.get(child).thick / total) * Math.min(total, parent.thick);
      y += share;
      return [child, { x: parent.to, y: y - share / 2 }];
    }),
  );
}
