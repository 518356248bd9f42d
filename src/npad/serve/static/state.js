// What the page shows, as its address: a link replays it.

import { applicable } from "./options.js";
import { split } from "./sentences.js";

const SEARCH = ["text", "model", "decoder"]; // what is searched; other names are options
const BEGINNING = "prefix"; // what the output begins with; "" while nothing has been typed
const BESIDE = "against"; // a second strategy, as a query of its own: decoder=beam&width=5
const VIEW = ["part", "at", "pick", "tour"]; // numbers: of the sentence, the step, the n-best row, the tour's step
const MOST = 100; // outputs with their attention

/** Read {text, model, decoder, prefix, options, against, part, at, pick, tour}, or null for each. */
export function fromQuery(query) {
  const parameters = new URLSearchParams(query);
  const state = { options: {} };
  const names = [...SEARCH, BEGINNING, BESIDE];
  for (const name of names) state[name] = parameters.get(name);
  for (const [name, value] of parameters) {
    if (![...names, ...VIEW].includes(name)) state.options[name] = value;
  }
  for (const name of VIEW) {
    const number = Number.parseInt(parameters.get(name) ?? "", 10);
    state[name] = Number.isInteger(number) && number >= 0 ? number : null;
  }
  return state;
}

/** The parts of the text, and which of them is searched: {parts, part}. */
export function partsOf(state) {
  const parts = split(state.text ?? "");
  return { parts, part: Math.min(state.part ?? 0, parts.length - 1) };
}

/** The query of the stream: all outputs are wanted, where listing more of them changes no search. */
export function toRequest(state) {
  const { parts, part } = partsOf(state);
  const query = toSearch({ ...state, text: parts[part].text });
  const wide = { npad: "chains", sampling: "samples" }[state.decoder ?? "npad"];
  const count = Math.min(state.options[wide] ?? 50, MOST);
  if (wide && count > 0) query.set("nbest", count); // otherwise the server names the mistake
  return query;
}

/** The decoder and the options that go with it, as the body of a request. */
export const strategyOf = ({ decoder, options }) => ({
  decoder: decoder ?? "npad",
  ...applicable(decoder ?? "npad", options),
});

/** A strategy as the value of `against`. */
export const spellStrategy = (state) => new URLSearchParams(strategyOf(state)).toString();

/** The state of the second strategy, on the same text; null without one. */
export function besideOf(state) {
  if (!state.against) return null;
  const { decoder, ...options } = Object.fromEntries(new URLSearchParams(state.against));
  return { ...state, decoder, options };
}

/** The text, the model, the decoder and its options, and what the output begins with. */
function toSearch(state) {
  const query = new URLSearchParams();
  for (const name of SEARCH) {
    if (state[name] !== null) query.set(name, state[name]);
  }
  for (const [name, value] of Object.entries(strategyOf(state))) query.set(name, value);
  if (state[BEGINNING]) query.set(BEGINNING, state[BEGINNING]);
  return query;
}

/** The query of the page: the search, and what of its results is in view. */
export function toQuery(state) {
  const query = toSearch(state);
  if (state[BESIDE]) query.set(BESIDE, state[BESIDE]);
  for (const name of VIEW) {
    if (state[name] !== null) query.set(name, state[name]);
  }
  return query;
}

/** Write the state to the address; `entry` makes it a new entry of the history. */
export function remember(state, entry = false) {
  const address = `?${toQuery(state)}`;
  if (address === location.search) return;
  if (entry) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}
