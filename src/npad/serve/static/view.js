// All pictures of one run, drawn again at most once a frame.

import { showAnswer, showSide } from "./answer.js";
import { showAttention } from "./attention.js";
import { showBranch } from "./branch.js";
import { plural, showCaptions, titleOf } from "./captions.js";
import { comparisons, showComparison } from "./compare.js";
import { byId, table } from "./dom.js";
import { count, logProb } from "./format.js";
import { Lattice } from "./lattice.js";
import { showNBest } from "./nbest.js";
import { Player } from "./player.js";
import { offer, saveData } from "./save.js";
import { showScatter } from "./scatter.js";
import { showStaircase } from "./staircase.js";
import { doubtOf, verdict } from "./verdict.js";

const FILLED = ["translation-facts", "verdict", "n-best-rows", "comparison-rows", "signature"];
const TOUCHES = matchMedia("(hover: none)");

export class View {
  /** @param {(changes: object) => void} onView called with the step or the row the user went to */
  constructor(onView) {
    this.onView = onView;
    this.fixes = false; // whether the model can write on from a given beginning
    this.run = null;
    this.beside = null; // the run of the second strategy
    this.references = [];
    this.branch = null; // {node, lattice}, under the pointer or focus
    this.frame = null;
    this.language = null; // the code of the one that the model reads
    this.sides = ["lattice", "beside"].map((name) => this.#side(name));
    this.lattice = this.sides[0].lattice;
    const names = ["start", "back", "play", "forward", "slider", "speed", "position"];
    const controls = Object.fromEntries(names.map((name) => [name, byId(`player-${name}`)]));
    this.player = new Player(controls, (step, chosen) => this.#show(step, chosen));
    byId("prefixes").addEventListener("toggle", () => this.#listPrefixes());
    for (const place of document.querySelectorAll("[data-saves]")) {
      const { saves, named } = place.dataset;
      offer(place, byId(saves), named, () => this.#described(named));
    }
    byId("save-data").addEventListener("click", () =>
      saveData(this.run, this.references, this.beside),
    );
    new ResizeObserver(() => this.run?.start && this.changed()).observe(byId("lattice"));
  }

  #side(name) {
    const [title, line, facts] = ["title", "output", "facts"].map((part) =>
      byId(`${name}-side-${part}`),
    );
    const lattice = new Lattice(byId(`${name}-picture`), (node) => this.#point(node, lattice));
    return { lattice, panel: byId(`${name}-side`), title, line, facts };
  }

  /** Begin with a run, and perhaps with that of a second strategy. */
  begin(run, beside) {
    this.clear();
    this.run = run;
    this.beside = beside;
    this.awaited = run.state.at; // the step that a link asks for, until it comes
    this.player.reset(this.awaited === null);
    this.sides[0].lattice.reset(run);
    this.sides[1].lattice.reset(beside);
    this.lattice.pick = run.state.pick ?? 0;
    byId("sides").classList.toggle("two", beside !== null);
    this.sides[1].panel.hidden = beside === null;
    byId("answer").classList.add("waiting");
    showBranch(byId("branch"), null, this.lattice);
  }

  /** Show nothing of the run before. */
  clear() {
    cancelAnimationFrame(this.frame);
    Object.assign(this, { run: null, beside: null, branch: null, frame: null, references: [] });
    document.body.dataset.compared = "false";
    for (const id of FILLED) byId(id).replaceChildren();
    for (const { title, line, facts } of this.sides) {
      for (const part of [title, line, facts]) part.replaceChildren();
    }
    byId("warning").hidden = true;
    byId("fix-hint").hidden = true;
    byId("save-data").disabled = true;
  }

  /** The output in view. */
  get text() {
    return this.run?.hypotheses[this.run.state.pick ?? 0]?.text ?? "";
  }

  /** The run has received something. */
  changed() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (this.run) this.#draw();
    });
  }

  /** Show what other strategies find, as their results come. */
  async compare(run, signal) {
    for await (const reference of comparisons(run, signal)) {
      if (signal.aborted) return;
      this.references.push(reference);
      if (reference.decoder === "greedy") run.greedy = reference;
      this.changed();
    }
    requestAnimationFrame(() => (document.body.dataset.compared = "true"));
  }

  #draw() {
    const { run, beside, lattice, player } = this;
    if (!run.start) return;
    if (!run.title) {
      run.title = titleOf(run.options);
      showCaptions(run.options.decoder);
    }
    if (beside?.start) {
      beside.title ??= titleOf(beside.options);
      beside.greedy ??= run.greedy;
      this.sides[1].lattice.update();
    }
    lattice.update();
    player.grow(Math.max(run.steps.length, beside?.steps.length ?? 0));
    if (this.awaited !== null && (run.done || this.awaited <= run.steps.length)) {
      player.show(this.awaited - 1);
      this.awaited = null;
    } else this.#showStep(player.at);
    this.#summarise();
    byId("answer").classList.toggle("waiting", run.bests.length === 0);
    byId("tint").hidden = run.chains.size < 2;
    byId("save-data").disabled = !run.done;
    this.#choose(run.state.pick ?? 0);
    if (beside) this.sides.forEach((side, i) => this.#compareSides(side, i));
    showScatter(parts("scores", "scatter"), run);
    const others = this.references.filter(({ name }) => name !== run.title);
    showStaircase(byId("staircase-picture"), run, others);
    showComparison(byId("comparison-rows"), run, others);
    byId("signature").textContent = run.start.signature;
    this.#showBranch();
    byId("lattice-hint").hidden = !this.sides.some(({ lattice: { picture } }) => isWide(picture));
  }

  #compareSides(side, i) {
    const [own, other] = i ? [this.beside, this.run] : [this.run, this.beside];
    if (own.start) showSide(side, own, other);
  }

  /** Show one row of the n-best list: its words, its path and its attention. */
  #choose(pick) {
    const { run } = this;
    const chosen = run.hypotheses[pick];
    showAnswer(byId("translation"), byId("translation-facts"), run, pick, this.fixes);
    byId("fix-hint").hidden = !this.fixes || !run.done || run.state.prefix !== null;
    byId("verdict").textContent = pick ? "" : verdict(run);
    this.#warn(pick ? "" : doubtOf(run, this.language));
    showNBest(byId("n-best-rows"), run, pick, (row) => this.#pick(row));
    showAttention(parts("attention", "attention"), run, chosen);
  }

  #warn(text) {
    byId("warning").textContent = text;
    byId("warning").hidden = !text;
  }

  /** Light the path of a row of the n-best list, whole and in view. */
  #pick(row) {
    const { run, player, lattice } = this;
    run.state.pick = lattice.pick = row || null;
    player.end();
    this.onView({ pick: row || null, at: null });
    this.changed();
    requestAnimationFrame(() => {
      const rows = byId("n-best-rows").querySelectorAll("button");
      rows[row]?.focus({ preventScroll: true });
      lattice.picture.parentElement.scrollIntoView({ block: "nearest" });
    });
  }

  #show(step, chosen) {
    if (!this.run) return;
    this.#showStep(step);
    this.#showBranch();
    this.#listPrefixes();
    this.#summarise();
    if (chosen && this.run.done) this.onView({ at: this.player.atEnd ? null : step + 1 });
  }

  #showStep(step) {
    for (const { lattice } of this.sides) lattice.show(step);
  }

  #point(node, lattice) {
    this.branch = node && { node, lattice };
    this.#showBranch();
  }

  #showBranch() {
    const { node = null, lattice = this.lattice } = this.branch ?? {};
    showBranch(byId("branch"), node, lattice);
  }

  /** Describe the lattices in a sentence each, for their text alternatives. */
  #summarise() {
    for (const { lattice } of this.sides) {
      const { run, shown } = lattice;
      const step = run?.steps[shown];
      if (!step) continue;
      const rows = count(run.start.chains, run.noun, plural(run.noun));
      const text = `Tree of prefixes at step ${shown + 1} of ${run.steps.length}: ${step.prefixes.length} distinct, of ${rows}`;
      lattice.picture.setAttribute("aria-label", text);
    }
    if (this.lattice.run?.start) byId("lowest").textContent = logProb(this.lattice.lowest);
    byId("lattice-hint").textContent = TOUCHES.matches
      ? "Swipe the tree sideways to see all of it."
      : "The tree is wider than the page: scroll it sideways.";
    this.#listPrefixes();
  }

  #listPrefixes() {
    const { run, lattice } = this;
    const step = run?.steps[lattice.shown];
    if (!byId("prefixes").open || !step) return;
    const rows = step.prefixes.map(({ tokens, chains, finished }) => {
      const nodes = lattice.trie.path(tokens);
      const node = finished ? nodes.at(-1) : nodes[tokens.length - 1];
      const score = node && lattice.scores.get(node.key);
      return [
        run.sentence(tokens) || "(nothing)",
        String(chains.length),
        score ? logProb(score.total) : "–",
        finished ? "yes" : "no",
      ];
    });
    const header = ["prefix", plural(run.noun), "log p", "finished"];
    byId("prefix-numbers").replaceChildren(table("Prefixes at this step", header, rows));
  }

  /** What a saved picture says of itself. */
  #described(name) {
    const { text, start } = this.run;
    return { title: `${name}: ${text}`, description: `${start.signature} ${location.href}` };
  }
}

const isWide = ({ parentElement: screen }) => screen.scrollWidth > screen.clientWidth + 4;

/** A section with its picture, its numbers and its note. */
function parts(section, name) {
  const [picture, numbers, note] = ["picture", "numbers", "note"].map((part) =>
    byId(`${name}-${part}`),
  );
  return { section: byId(section), picture, numbers, note };
}
