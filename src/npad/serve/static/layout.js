// Geometry of the lattice: where each prefix lies. Words lie in columns, one a step; the chains that
// share a prefix are one line, as wide as they are many.

import { piece } from "./words.js";

export const WIDEST = 20; // pixels, all chains together
const NARROWEST = 1.5;
const ROW = 21; // pixels: a line of text, and the line below it
const GAP = 34; // between columns, where lines part
const MARGIN = { left: 14, top: 16, right: 92, bottom: 10 };

export const thickness = (chains, all) => Math.max(NARROWEST, (WIDEST * chains) / all);

/**
 * Place the nodes of a trie.
 *
 * @param {Trie} trie
 * @param {number} all the number of chains
 * @param {(text: string) => number} measure the width of a text in pixels
 * @returns {{places: Map, width: number, height: number}} per node {from, to, y, thick}
 */
export function layout(trie, all, measure) {
  const columns = columnsOf(trie, measure);
  const places = new Map();
  let y = MARGIN.top;

  function place(node) {
    const { x, width } = columns[node.depth];
    const own = node.isEnd ? 0 : measure(piece(node.token ?? ""));
    const to = node.children.size ? x + width : x + own;
    const thick = thickness(node.most, all);
    const children = [...node.children.values()];
    if (children.length === 0) {
      const height = Math.max(ROW, 15 + thick);
      places.set(node, { from: x, to, y: y + height - thick / 2 - 3, thick });
      y += height;
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

function columnsOf(trie, measure) {
  const widths = [0];
  for (const node of trie.nodes.values()) {
    const width = node.token === null || node.isEnd ? 0 : measure(piece(node.token));
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, width);
  }
  let x = MARGIN.left;
  return widths.map((width) => {
    const column = { x, width };
    x += width + GAP;
    return column;
  });
}

/** The line of a node: a curve from its parent, then straight below its word. */
export function line({ from, to, y }, start) {
  if (start === null) return `M${from},${round(y)}H${to}`;
  const middle = (start.x + from) / 2;
  const curve = `C${round(middle)},${round(start.y)} ${round(middle)},${round(y)} ${from},${round(y)}`;
  return `M${round(start.x)},${round(start.y)}${curve}H${round(Math.max(to, from + 1))}`;
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
