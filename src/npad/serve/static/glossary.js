// The technical words of the page, each explained in a sentence or two: [the word, what it means]. Tips show
// them, and the list at the foot of the page.

export const TERMS = {
  decoder: [
    "Decoder",
    "The method that turns the model’s probabilities into an output. The model stays the same.",
  ],
  greedy: [
    "greedy search",
    "Takes the most probable next token at every step, and never goes back.",
  ],
  beam: [
    "beam search",
    "Keeps several prefixes at every step, the most probable ones, and extends all of them.",
  ],
  sampling: [
    "sampling",
    "Draws every token at random, by the model’s probabilities, several times over; the best output is kept.",
  ],
  diverse: [
    "diverse decoding",
    "Beam search that prefers prefixes with different parents, so that the beam is more varied.",
  ],
  exact: [
    "exact search",
    "Proves which output is the most probable of all, or gives up when its budget is spent.",
  ],
  npad: [
    "NPAD",
    "Noisy parallel approximate decoding: runs many chains with noise in the model’s hidden state, scores their outputs again without noise, and keeps the best.",
  ],
  "best-of": ["best of several", "Runs several decoders and keeps the most probable output."],
  selected: ["selection", "Runs a decoder and lets a selector choose among its outputs."],
  steered: [
    "steered search",
    "Runs another decoder while a small trained network, the actor, nudges the hidden state.",
  ],
  "shared-sampling": [
    "shared sampling",
    "Sampling that computes a prefix once, however many samples share it.",
  ],
  epsilon: ["epsilon sampling", "Sampling without the tokens below a probability ε."],
  arithmetic: [
    "arithmetic sampling",
    "Sampling whose draws are spread evenly over the model’s probabilities, so that they repeat less.",
  ],
  "stochastic-beam": [
    "stochastic beam search",
    "Draws outputs at random without ever drawing the same one twice.",
  ],
  fallback: [
    "fallback",
    "Tries a decoder, and samples at rising temperatures while its output looks wrong, as Whisper does.",
  ],
  "mbr-decoding": [
    "MBR decoding",
    "Keeps the output that is most similar to the other candidates, on average.",
  ],
  chain: [
    "chain",
    "One copy of the search. NPAD runs many side by side, each with noise of its own; chain 0 has none.",
  ],
  sample: ["sample", "One output drawn at random, token by token."],
  hypothesis: ["hypothesis", "A complete or partial output that the search holds."],
  clean: [
    "clean",
    "Without noise. A clean score is the model’s own; outputs are compared by it alone.",
  ],
  noisy: ["noisy", "As the chain saw it: computed from a hidden state with noise."],
  "log-p": [
    "log p",
    "The natural logarithm of the output’s probability under the model without noise: 0 is certain; one less is 2.7 times less probable.",
  ],
  probability: [
    "probability",
    "How probable the model finds the whole output: the product over all of its tokens, the end included. The most probable output is not always the best.",
  ],
  "expected-chrf": [
    "expected chrF",
    "How good this output probably is: chrF, from 0 to 100, measures how much text it shares with a human translation. Estimated from the model’s log p per token, or from how far the outputs of the search agree.",
  ],
  calls: [
    "model calls",
    "The cost of a search, the same on every machine: one call computes the next token of one row.",
  ],
  rescored: ["re-scored", "Further model calls, to score noisy outputs again without noise."],
  token: ["token", "The unit that the model reads and writes: a word or a part of a word."],
  prefix: ["prefix", "The tokens that a search has written so far."],
  attention: [
    "attention",
    "How much the model looks at each token of the source while it writes a token of the output.",
  ],
  "n-best": ["n-best", "The distinct outputs of the search, best first."],
  proven: ["optimum, proven", "Exact search has shown that no output is more probable."],
  norm: [
    "noise, ‖ε‖",
    "The length of the noise vector added to the hidden state before this token.",
  ],
  agreement: ["tint", "How many outputs of this search have the same word, in the same order."],
  signature: [
    "signature",
    "Everything that decides the output, in a line: decoder, options, model and version. For reports.",
  ],
  chains: [
    "Chains",
    "How many copies of the search run side by side. More find more, and cost more.",
  ],
  inner: ["Each chain runs", "The search that every chain runs, with noise in the hidden state."],
  width: ["Beam width", "How many prefixes the beam keeps at every step."],
  eta: [
    "Diversity η",
    "How strongly a prefix is ranked down for having better siblings. 0 is plain beam search.",
  ],
  samples: ["Samples", "How many outputs are drawn."],
  temperature: [
    "Temperature",
    "Below 1, samples keep to the probable tokens; above 1, they stray further from them.",
  ],
  sigma: [
    "Noise σ₀",
    "The standard deviation of the noise at the first step. 0 is no noise: all chains do the same.",
  ],
  schedule: [
    "Schedule",
    "How the noise changes from step to step. With 1/t it is a half of σ₀ at step 2, a third at step 3.",
  ],
  distribution: ["Distribution", "What the noise is drawn from; gaussian in the paper."],
  site: ["Noise enters at", "The part of the model that noise is added to."],
  relative: [
    "relative to the state",
    "Scales the noise by the size of the hidden state, which differs between transformers.",
  ],
  selector: [
    "Keep the",
    "How the output is chosen among the candidates: by probability, by probability per length, or by similarity to the others (MBR).",
  ],
  seed: [
    "Seed",
    "The same seed gives the same noise and the same output; another one, another draw.",
  ],
  budget: ["Budget, calls", "The model calls after which exact search gives up."],
  max_length: [
    "Longest output",
    "The tokens after which an output is cut, its end token included.",
  ],
  against: [
    "Compare with",
    "A second strategy on the same text: both trees are shown side by side, and differing words are marked.",
  ],
};
