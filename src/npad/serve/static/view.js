// All pictures of one run, drawn again at most once a frame.

import { showAnswer } from "./answer.js";
import { showAttention } from "./attention.js";
import { showBranch } from "./branch.js";
import { comparisons, showComparison } from "./compare.js";
import { byId, table } from "./dom.js";
import { count, logProb } from "./format.js";
import { Lattice } from "./lattice.js";
import { showNBest } from "./nbest.js";
import { Player } from "./player.js";
import { showScatter } from "./scatter.js";
import { showStaircase } from "./staircase.js";

export class View {
  /** @param {(changes: object) => void} onView called with the step or the row the user went to */
  constructor(onView) {
    this.onView = onView;
    this.run = null;
    this.references = [];
    this.branch = null;
    this.frame = null;
    this.lattice = new Lattice(byId("lattice-picture"), (node) => this.#point(node));
    const names = ["start", "back", "play", "forward", "slider", "speed", "position"];
    const controls = Object.fromEntries(names.map((name) => [name, byId(`player-${name}`)]));
    this.player = new Player(controls, (step, chosen) => this.#show(step, chosen));
    byId("prefixes").addEventListener("toggle", () => this.#listPrefixes());
    new ResizeObserver(() => this.run?.start && this.changed()).observe(byId("lattice"));
  }

  begin(run) {
    this.run = run;
    this.references = [];
    this.branch = null;
    this.awaited = run.state.at; // the step that a link asks for, until it comes
    this.player.reset(this.awaited === null);
    this.lattice.reset(run);
    document.body.dataset.compared = "false";
    for (const id of ["n-best-rows", "comparison-rows", "translation-facts"])
      byId(id).replaceChildren();
    byId("signature").textContent = "";
    byId("answer").classList.add("waiting");
    showBranch(byId("branch"), null, this.lattice);
  }

  /** The run has received something. */
  changed() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.#draw();
    });
  }

  /** Show what other strategies find, as their results come. */
  async compare(run, signal) {
    for await (const reference of comparisons(run, signal)) {
      if (signal.aborted) return;
      this.references.push(reference);
      if (reference.decoder === "greedy") run.greedy = reference.tokens;
      this.changed();
    }
    requestAnimationFrame(() => (document.body.dataset.compared = "true"));
  }

  #draw() {
    const { run, lattice, player } = this;
    if (!run.start) return;
    run.title ??= titleOf(run.options);
    lattice.update();
    player.grow(run.steps.length);
    if (this.awaited !== null && (run.done || this.awaited <= run.steps.length)) {
      player.show(this.awaited - 1);
      this.awaited = null;
    } else lattice.show(player.at);
    this.#summarise();
    byId("answer").classList.toggle("waiting", run.bests.length === 0);
    byId("tint").hidden = run.chains.size < 2;
    this.#choose(run.state.pick ?? 0);
    showScatter(parts("scatter", "scatter-key", "scatter-table"), run);
    const others = this.references.filter(({ name }) => name !== run.title);
    showStaircase(byId("staircase-picture"), run, others);
    showComparison(byId("comparison-rows"), run, others);
    byId("signature").textContent = run.start.signature;
    showBranch(byId("branch"), this.branch, lattice);
  }

  /** Show one row of the n-best list: its words and its attention. */
  #choose(pick) {
    const { run } = this;
    showAnswer(byId("translation"), byId("translation-facts"), run, pick);
    showNBest(byId("n-best-rows"), run, pick, (row) => {
      run.state.pick = row || null;
      this.onView({ pick: row || null });
      this.changed();
      requestAnimationFrame(() => byId("n-best-rows").querySelectorAll("button")[row]?.focus());
    });
    showAttention(parts("attention", "attention-table"), run, run.hypotheses[pick]);
  }

  #show(step, chosen) {
    this.lattice.show(step);
    showBranch(byId("branch"), this.branch, this.lattice);
    this.#listPrefixes();
    this.#summarise();
    if (chosen && this.run.done) this.onView({ at: this.player.atEnd ? null : step + 1 });
  }

  #point(node) {
    this.branch = node;
    showBranch(byId("branch"), node, this.lattice);
  }

  /** Describe the lattice in a sentence, for its text alternative. */
  #summarise() {
    const { run, lattice, player } = this;
    const step = run.steps[player.at];
    if (!step) return;
    const text = `Tree of prefixes at step ${player.at + 1} of ${run.steps.length}: ${step.prefixes.length} distinct, of ${count(run.start.chains, run.noun)}`;
    lattice.picture.setAttribute("aria-label", text);
    byId("lowest").textContent = logProb(lattice.lowest);
    this.#listPrefixes();
  }

  #listPrefixes() {
    const { run, lattice, player } = this;
    const step = run?.steps[player.at];
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
    byId("prefix-numbers").replaceChildren(
      table("Prefixes of all chains at this step", ["prefix", "chains", "log p", "finished"], rows),
    );
  }
}

/** The elements of a picture with its numbers and its note; companions are hidden with it. */
function parts(name, ...companions) {
  const [picture, numbers, note] = ["picture", "numbers", "note"].map((part) =>
    byId(`${name}-${part}`),
  );
  return { picture, numbers, note, companions: companions.map(byId) };
}

/** A decoder's short name, as in `NPAD-50` or `beam 5`. */
function titleOf({ decoder, chains, inner, width, samples }) {
  if (decoder === "npad")
    return inner && inner !== "greedy" ? `NPAD-${chains}, ${inner}` : `NPAD-${chains}`;
  if (decoder === "beam" || decoder === "diverse") return `${decoder} ${width}`;
  return decoder === "sampling" ? `${samples} samples` : decoder;
}
