// The lattice: the prefixes of all chains as a tree that grows step by step.

import { ruler, set, svg, vary } from "./dom.js";
import { plural } from "./captions.js";
import { count, logProb, probability } from "./format.js";
import { layout, line, round, starts, thickness } from "./layout.js";
import { Motion } from "./motion.js";
import { cleanScores, Trie } from "./trie.js";
import { piece } from "./words.js";

const ENDINGS = 100; // pixels for the scores behind the words
const FAINTEST = 12; // colours span at most so many units of log-probability

export class Lattice {
  /**
   * @param {SVGElement} picture role "tree"
   * @param {(node: Node | null) => void} onBranch called with the branch under the pointer or focus
   */
  constructor(picture, onBranch) {
    this.picture = picture;
    this.onBranch = onBranch;
    this.motion = new Motion(() => this.#draw());
    this.measure = ruler(picture);
    picture.addEventListener("pointerover", (event) => this.#point(event.target));
    picture.addEventListener("pointerleave", () => this.onBranch(this.focused));
    picture.addEventListener("focusin", (event) => this.#focus(event.target));
    picture.addEventListener("keydown", (event) => this.#key(event));
    this.reset(null);
  }

  reset(run) {
    this.run = run;
    this.trie = new Trie();
    this.scores = cleanScores([]);
    this.shown = -1; // the step in view
    this.pick = 0; // the row of the n-best list whose path is lit
    this.focused = null;
    this.groups = new Map(); // node -> its elements
    this.motion.clear();
    this.casings = svg("g", { "aria-hidden": "true" }); // below all lines
    this.picture.replaceChildren(this.casings);
  }

  /** Read what the run has received since. */
  update() {
    const { steps, chains } = this.run;
    while (this.trie.steps.length < steps.length) this.trie.add(steps[this.trie.steps.length]);
    this.scores = cleanScores(chains.values());
  }

  /** Show a step. */
  show(step) {
    if (!this.run?.start || step < 0 || this.trie.steps.length === 0) return;
    this.shown = Math.min(step, this.trie.steps.length - 1);
    const { places, width, height } = layout(
      this.trie,
      this.run.start.chains,
      this.measure,
      this.#room(),
    );
    set(this.picture, {
      width: round(width),
      height: round(height),
      viewBox: `0 0 ${round(width)} ${round(height)}`,
    });
    this.#make();
    const order = this.#order();
    this.groups.forEach((parts, node) => this.#describe(node, parts, order));
    this.motion.to(places);
    this.#follow(places);
    if (![...this.groups.keys()].includes(this.focused))
      this.#rove(this.trie.root.children.values().next().value);
  }

  #room() {
    return this.picture.parentElement.clientWidth;
  }

  /** Scroll to the words that the step in view has added; in the end, to where the output parts. */
  #follow(places) {
    const parting = places.get(
      this.run.done && this.shown === this.trie.steps.length - 1 ? this.parting : null,
    );
    const words = [...places.keys()].filter((node) => this.through(node).length && !node.isEnd);
    const right = Math.max(0, ...words.map((node) => places.get(node).to)) + ENDINGS;
    const screen = this.picture.parentElement;
    screen.scrollLeft = parting ? parting.from - 0.35 * this.#room() : right - this.#room();
    if (parting) screen.scrollTop = parting.y - screen.clientHeight / 2;
  }

  /** The chains through a node at the step in view. */
  through(node) {
    return this.trie.steps[this.shown]?.get(node) ?? [];
  }

  /** The first branch of the chosen output that greedy search does not take; its end if none. */
  get parting() {
    if (!this.run?.start || !this.run.winner) return null;
    const { greedy, winner } = this.#order();
    return [...winner].find((node) => !greedy.has(node)) ?? [...winner].at(-1) ?? null;
  }

  /** The lowest log-probability that the colours tell apart. */
  get lowest() {
    const scores = [...this.run.chains.values()].map((chain) => chain.log_prob);
    const totals = scores.filter(Number.isFinite);
    if (totals.length === 0) return -FAINTEST;
    return Math.max(Math.min(...totals), Math.max(...totals) - FAINTEST);
  }

  /** Outline or light the paths of outputs: greedy search, the winner, the row picked. */
  #order() {
    const { greedy, winner } = this.run;
    const picked = this.run.hypotheses[this.pick]?.tokens ?? winner;
    return {
      greedy: new Set(greedy ? this.trie.path(greedy.tokens) : []),
      winner: new Set(picked ? this.trie.path(picked) : []),
    };
  }

  /** Make the elements of new nodes, in the tree's own order, whenever they came. */
  #make() {
    let next = { group: null, casing: null };
    for (const node of this.trie.ordered().reverse()) {
      if (!this.groups.has(node)) this.groups.set(node, this.#elements(node));
      const { group, casing } = this.groups.get(node);
      if (group.nextSibling !== next.group || !group.parentNode)
        this.picture.insertBefore(group, next.group);
      if (casing.nextSibling !== next.casing || !casing.parentNode)
        this.casings.insertBefore(casing, next.casing);
      next = { group, casing };
    }
  }

  #elements(node) {
    const parts = {
      group: svg("g", { role: "treeitem", tabindex: -1, "aria-level": node.depth }),
      casing: svg("path", { class: "casing" }),
      edge: svg("path", { class: "edge" }),
      hit: svg("path", { class: "hit" }),
      dot: node.isEnd ? svg("circle", { class: "end" }) : null,
      text: svg("text", { class: node.isEnd ? "score" : "word" }),
    };
    const { group, edge, hit, dot, text } = parts;
    group.append(...[edge, hit, dot, text].filter(Boolean));
    group.node = node;
    return parts;
  }

  #describe(node, parts, { greedy, winner }) {
    const through = this.through(node);
    const score = this.scores.get(node.key);
    const all = this.run.start.chains;
    const share = score ? Math.min(1, Math.max(0, 1 - score.total / this.lowest)) : null;
    const state = {
      hidden: node.first > this.shown,
      dropped: through.length === 0,
      unknown: !score,
      greedy: greedy.has(node),
      winner: winner.has(node),
    };
    parts.thick = thickness(through.length, all);
    parts.group.setAttribute(
      "class",
      Object.keys(state)
        .filter((name) => state[name])
        .join(" "),
    );
    set(parts.group, {
      "aria-hidden": state.hidden ? "true" : null,
      "aria-label": this.label(node),
      "data-chains": through.length,
    });
    if (share !== null) vary(parts.group, "--share", `${round(100 * share)}%`);
    set(parts.edge, { "stroke-width": round(parts.thick) });
    set(parts.casing, {
      "stroke-width": round(parts.thick + 5),
      visibility: state.greedy && !state.hidden ? null : "hidden",
    });
    set(parts.hit, { "stroke-width": Math.max(24, parts.thick) });
    parts.text.textContent = node.isEnd ? this.#ending(score, through) : piece(node.token);
  }

  #ending(score, through) {
    const times = through.length > 1 ? ` ×${through.length}` : "";
    return `${score ? logProb(score.total) : ""}${times}`;
  }

  /** A node in words, for those who hear the picture. */
  label(node) {
    const score = this.scores.get(node.key);
    const text = this.run.sentence(node.tokens) || "nothing";
    const clean = score ? `, probability ${probability(score.total)}` : "";
    const end = node.isEnd ? `, end, ${this.#ending(score, this.through(node))}` : "";
    return `${text}${end}: ${count(this.through(node).length, this.run.noun, plural(this.run.noun))}${clean}`;
  }

  #draw() {
    const { places } = this.motion;
    const from = new Map();
    for (const node of places.keys()) {
      for (const [child, start] of starts(node, places)) from.set(child, start);
    }
    for (const [node, parts] of this.groups) {
      const place = places.get(node);
      if (!place) continue;
      const path = line(place, from.get(node) ?? null);
      for (const part of [parts.edge, parts.casing, parts.hit]) part.setAttribute("d", path);
      if (node.isEnd) {
        set(parts.dot, {
          cx: round(place.from),
          cy: round(place.y),
          r: round(Math.max(3, parts.thick / 2)),
        });
        const beside = place.from + Math.max(3, parts.thick / 2) + 5;
        set(parts.text, { x: round(beside), y: round(place.y + 4) });
      } else {
        set(parts.text, { x: round(place.from), y: round(place.y - place.thick / 2 - 6) });
      }
    }
  }

  #point(target) {
    const node = target.closest?.("g[role=treeitem]")?.node;
    if (node) this.onBranch(node);
  }

  #focus(target) {
    const node = target.closest?.("g[role=treeitem]")?.node;
    if (!node) return;
    this.#rove(node);
    this.onBranch(node);
  }

  /** Make a node the one that the Tab key reaches. */
  #rove(node) {
    this.groups.get(this.focused)?.group.setAttribute("tabindex", -1);
    this.focused = node ?? null;
    this.groups.get(node)?.group.setAttribute("tabindex", 0);
  }

  #key(event) {
    const node = event.target.node;
    if (!node) return;
    const visible = [...this.groups.keys()].filter((other) => other.first <= this.shown);
    const column = visible
      .filter((other) => other.depth === node.depth)
      .sort((a, b) => this.motion.places.get(a).y - this.motion.places.get(b).y);
    const next = {
      ArrowRight: () => [...node.children.values()].find((other) => other.first <= this.shown),
      ArrowLeft: () => (node.parent.token === null ? null : node.parent),
      ArrowDown: () => column[column.indexOf(node) + 1],
      ArrowUp: () => column[column.indexOf(node) - 1],
    }[event.key]?.();
    if (!next) return;
    event.preventDefault();
    this.groups.get(next).group.focus();
  }
}
