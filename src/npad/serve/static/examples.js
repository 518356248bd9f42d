// Texts to begin with, by what the model reads. They were chosen by running them on the models that
// npad ships; tests/web/test_page_guide.py checks some.

import { PHRASES } from "./toy.js";

// Of a model that reads English, chosen on en-de.
export const ENGLISH = [
  "They made him wait outside in the rain.", // greedy search goes wrong, and some chains do not
  "I spent the whole weekend reading a book.", // also
  "Where is my phone?", // nothing is more probable than what greedy search finds
  "There is nothing better than a cup of coffee in the morning.", // like the first
  "The committee adjourned after a heated debate about fiscal policy.", // words it does not know
];

/** The examples for a model of the server's list; none where nothing is known of what it reads. */
export function examplesOf(model) {
  if (model?.id === "toy") return PHRASES;
  return model?.source === "en" ? ENGLISH : [];
}

/** What to show to a visitor who has given no text. */
export const firstText = (model) => examplesOf(model)[0] ?? ENGLISH[0];

/** Whether a text is one of the examples, and so nobody's own. */
export const isExample = (text) => [...PHRASES, ...ENGLISH].includes(text);
