// The prefix tree of a search: a node for every prefix of any chain, and one for every end.

const BETWEEN = "\u001f";
export const END = "\u0003";

export const keyOf = (tokens) => tokens.map((token) => BETWEEN + token).join("");

export class Node {
  constructor(parent, token, first) {
    this.parent = parent;
    this.token = token; // null at the root, END where an output ends
    this.depth = parent ? parent.depth + 1 : 0;
    this.key = parent ? parent.key + BETWEEN + token : "";
    this.tokens = parent && token !== END ? [...parent.tokens, token] : (parent?.tokens ?? []);
    this.children = new Map();
    this.first = first; // the step that has it first
    this.most = 0; // chains at any step
  }

  get isEnd() {
    return this.token === END;
  }

  child(token, first) {
    if (!this.children.has(token)) this.children.set(token, new Node(this, token, first));
    return this.children.get(token);
  }
}

export class Trie {
  constructor() {
    this.root = new Node(null, null, 0);
    this.nodes = new Map([["", this.root]]);
    this.steps = []; // per step: node -> the chains through it
  }

  /** Add a step's prefixes. */
  add(step) {
    const number = this.steps.length;
    const occupied = new Map();
    for (const { tokens, chains, finished } of step.prefixes) {
      let node = this.root;
      this.#occupy(occupied, node, chains);
      for (const token of finished ? [...tokens, END] : tokens) {
        node = node.child(token, number);
        this.nodes.set(node.key, node);
        this.#occupy(occupied, node, chains);
      }
    }
    this.steps.push(occupied);
  }

  #occupy(occupied, node, chains) {
    const through = occupied.get(node) ?? [];
    through.push(...chains);
    occupied.set(node, through);
    node.most = Math.max(node.most, through.length);
  }

  /** All nodes but the root, each before its children. */
  ordered(node = this.root) {
    return [...node.children.values()].flatMap((child) => [child, ...this.ordered(child)]);
  }

  /** The nodes of an output, from the first token to its end. */
  path(tokens) {
    const keys = tokens.map((_, i) => keyOf(tokens.slice(0, i + 1)));
    const found = keys.map((key) => this.nodes.get(key)).filter(Boolean);
    const end = this.nodes.get(keyOf([...tokens, END]));
    return end ? [...found, end] : found;
  }
}

/** Clean log-probabilities by node key, {total, token}, from the chains that are re-scored. */
export function cleanScores(chains) {
  const scores = new Map([["", { total: 0, token: 0 }]]);
  for (const { tokens, finished, token_log_probs: each } of chains) {
    let key = "";
    let total = 0;
    (finished ? [...tokens, END] : tokens).forEach((token, i) => {
      if (each[i] === undefined) return;
      key += BETWEEN + token;
      total += each[i];
      scores.set(key, { total, token: each[i] });
    });
  }
  return scores;
}
