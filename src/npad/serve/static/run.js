// The record of one search: every event of the stream, in a form that the pictures read.

import { rowOf } from "./captions.js";
import { partsOf, strategyOf } from "./state.js";
import { isMarked, sentence, words } from "./words.js";

export class Run {
  constructor(state) {
    this.state = state;
    Object.assign(this, partsOf(state)); // parts, part: the sentences, and which one is searched
    this.text = this.parts[this.part].text;
    this.asked = strategyOf(state);
    this.start = null;
    this.options = null; // of the decoder, as the server resolved them
    this.steps = []; // as they came; the player shows one at a time
    this.chains = new Map(); // number -> chain, once re-scored
    this.bests = []; // each better than the one before
    this.done = null;
    this.marked = false; // whether tokens carry a mark where a word begins
    this.greedy = null; // {tokens, logProb} of greedy search
  }

  receive(event, received) {
    const data = withInfinities(received);
    if (event === "start") {
      this.start = data;
      this.options = { ...data.options, decoder: this.asked.decoder };
      this.marked = isMarked(data.source);
    } else if (event === "step") {
      this.steps.push(data);
      this.marked ||= data.prefixes.some((prefix) => isMarked(prefix.tokens));
    } else if (event === "chain") {
      this.chains.set(data.chain, data);
      if (data.chain === 0 && this.beginsGreedy())
        this.greedy = { tokens: data.tokens, logProb: data.log_prob };
    } else if (event === "best") {
      this.bests.push(data);
    } else if (event === "done") {
      this.done = data;
    }
  }

  /** Whether chain 0 is greedy search: it has no noise. */
  beginsGreedy() {
    const { decoder, inner } = this.options;
    return decoder === "greedy" || (decoder === "npad" && (inner ?? "greedy") === "greedy");
  }

  /** What a row of the search is called. */
  get noun() {
    return rowOf(this.options.decoder);
  }

  get hypotheses() {
    return this.done?.hypotheses ?? [];
  }

  /** The tokens of the best output so far; null before the first. */
  get winner() {
    return this.hypotheses[0]?.tokens ?? this.bests.at(-1)?.tokens ?? null;
  }

  /** The outputs of all chains that have ended, as lists of words. */
  outputs() {
    return [...this.chains.values()].map((chain) =>
      words(chain.tokens, this.marked).map((word) => word.text),
    );
  }

  sentence(tokens) {
    return sentence(tokens, this.marked);
  }
}

/** JSON has no −∞, the score of what the clean model finds impossible: the server writes null. */
function withInfinities(data) {
  const read = { ...data };
  if (read.log_prob === null) read.log_prob = -Infinity;
  if (read.token_log_probs) read.token_log_probs = read.token_log_probs.map((p) => p ?? -Infinity);
  if (read.hypotheses) read.hypotheses = read.hypotheses.map(withInfinities);
  return read;
}
