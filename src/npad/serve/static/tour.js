// A tour in six steps for a class, on a model whose every probability is known.

import { html, vary } from "./dom.js";
import { outputs, PHRASE } from "./toy.js";

const BEAM = { decoder: "beam", options: { width: "3" } };
const CHAINS = { chains: "10", sigma: "0.3", seed: "0" };

export const STEPS = [
  {
    title: "A model you can read",
    paragraphs: [
      `This toy model translates four German phrases, and every probability in it is written down. “${PHRASE}” is an idiom: word for word “I only understand train station”, in English “it is all Greek to me”.`,
      "The first word is “i” with probability 0.44, then “me” 0.16, “we” 0.15, “it” 0.14 and “only” 0.11. Multiply the words of an output and you get its probability. The best output starts with the fourth-best word. Which search finds it?",
    ],
    outputs: true,
    state: { decoder: "greedy", options: {} },
    look: "answer",
  },
  {
    title: "Greedy search",
    paragraphs: [
      "Take the most probable word, again and again: i, understand, only, station.",
      "0.44 × 0.52 × 0.60 × 0.40 = 0.055. It costs five model calls, one per word and one for the end, and there is no way back: once “i” is chosen, “it” is out of reach.",
    ],
    state: { decoder: "greedy", options: {} },
    look: "lattice",
  },
  {
    title: "Beam search",
    paragraphs: [
      "Keep the three best prefixes at every step. “it” ranks fourth among the first words, so a beam of 3 never learns what follows it. The faint branches are prefixes that the beam kept for a step and then dropped.",
      "Set the width to 4 in the settings: now “it” survives, and what follows it is nearly certain.",
    ],
    settings: true,
    state: BEAM,
    look: "lattice",
  },
  {
    title: "Sampling",
    paragraphs: [
      "Draw each word by its probability, twenty times over, and keep the most probable output. A draw finds the idiom with probability 0.134, so twenty draws miss it with probability 0.056.",
      "Change the seed to draw again. Nothing guides a sample: it draws “i see nothing” as often as the model’s probabilities say.",
    ],
    settings: true,
    state: { decoder: "sampling", options: { samples: "20", temperature: "1.0", seed: "0" } },
    look: "lattice",
  },
  {
    title: "Noise in the hidden state",
    paragraphs: [
      "NPAD runs greedy search ten times over. Before each step, chains 1 to 9 add noise to the model’s hidden state, strong at first and fading as σ₀/t; chain 0 stays clean and is greedy search itself, outlined in the tree.",
      "Noise moves a chain from one first word to another; as it fades, the chain follows the model to a sensible end. Step through it, then change σ₀: with too little noise all chains agree, with too much their outputs make no sense.",
    ],
    settings: true,
    state: { decoder: "npad", options: CHAINS },
    look: "lattice",
  },
  {
    title: "The clean model decides",
    paragraphs: [
      "A noisy chain cannot judge its own output: below the diagonal, noise made outputs look better than they are. So every output is scored again without noise, and the most probable one is kept. As chain 0 is greedy search, the output of NPAD is never less probable than that of greedy search.",
      "Exact search proves that no output beats 0.134. Compare what each strategy paid for what it found; on a model this small the proof is cheap, on a real one it is often out of reach. Now leave the tour, and try your own sentences on another model.",
    ],
    state: { decoder: "npad", options: CHAINS },
    look: "scores",
  },
];

/** Bring a step's picture into view. */
export function lookAt(step) {
  document.getElementById(STEPS[step - 1].look).scrollIntoView({ block: "start" });
}

/** The state of a tour's step, counted from 1. */
export function stateOf(step) {
  const { decoder, options } = STEPS[step - 1].state;
  return {
    text: PHRASE,
    model: "toy",
    decoder,
    options: { ...options },
    prefix: null,
    against: null,
    part: null,
    at: null,
    pick: null,
    tour: step,
  };
}

/** Fill the tour's panel; `onStep` is called with the number of the step to go to, or null to leave. */
export function showTour(panel, step, onStep) {
  panel.hidden = step === null;
  document.body.classList.toggle("touring", step !== null);
  document
    .querySelectorAll(".looked-at")
    .forEach((section) => section.classList.remove("looked-at"));
  if (step === null) return;
  const { title, paragraphs, outputs: listed, look, settings } = STEPS[step - 1];
  document.getElementById("settings").open = Boolean(settings);
  document.getElementById(look)?.classList.add("looked-at");
  const heading = html(
    "h2",
    { tabindex: -1 },
    html("span", { class: "step" }, `${step} of ${STEPS.length}`),
    title,
  );
  const back = button("Back", step > 1 ? () => onStep(step - 1) : null);
  const next = button(step < STEPS.length ? "Next" : "Finish", () =>
    onStep(step < STEPS.length ? step + 1 : null),
  );
  const leave = button("Leave the tour", () => onStep(null));
  next.classList.add("primary");
  leave.classList.add("plain");
  panel.replaceChildren(
    heading,
    ...paragraphs.map((text) => html("p", {}, text)),
    ...(listed ? [probabilities()] : []),
    html("p", { class: "buttons" }, back, next, leave),
  );
}

function button(text, action) {
  const element = html("button", { type: "button", disabled: action === null }, text);
  if (action) element.addEventListener("click", action);
  return element;
}

/** The most probable outputs, each with a bar. */
function probabilities() {
  const every = outputs();
  const items = every
    .slice(0, 6)
    .map(({ text, probability }) =>
      html(
        "li",
        {},
        html("span", { class: "source" }, text),
        vary(
          html("span", { class: "bar", "aria-hidden": "true" }),
          "--share",
          `${Math.round((100 * probability) / every[0].probability)}%`,
        ),
        html("span", { class: "number" }, probability.toFixed(3)),
      ),
    );
  return html(
    "div",
    { class: "outputs" },
    html("p", { class: "quiet" }, `the six most probable of its ${every.length} outputs`),
    html("ol", { class: "attended" }, ...items),
  );
}
