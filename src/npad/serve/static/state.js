// What the page shows, as its address: a link replays it.

import { applicable } from "./options.js";

const SEARCH = ["text", "model", "decoder"]; // what is searched; all else are options
const VIEW = ["at", "pick", "tour"]; // numbers: the step, the row of the n-best list, the tour's step
const MOST = 100; // outputs with their attention

/** Read {text, model, decoder, options, at, pick, tour} from a query; absent ones are null. */
export function fromQuery(query) {
  const parameters = new URLSearchParams(query);
  const state = { options: {} };
  for (const name of SEARCH) state[name] = parameters.get(name);
  for (const [name, value] of parameters) {
    if (![...SEARCH, ...VIEW].includes(name)) state.options[name] = value;
  }
  for (const name of VIEW) {
    const number = Number.parseInt(parameters.get(name) ?? "", 10);
    state[name] = Number.isInteger(number) && number >= 0 ? number : null;
  }
  return state;
}

/** The query of the stream: all outputs are wanted, where listing more of them changes no search. */
export function toRequest(state) {
  const query = toSearch(state);
  const wide = { npad: "chains", sampling: "samples" }[state.decoder ?? "npad"];
  if (wide) query.set("nbest", Math.min(state.options[wide] ?? 50, MOST));
  return query;
}

/** The text, the model, the decoder and its options. */
function toSearch(state) {
  const query = new URLSearchParams();
  for (const name of SEARCH) {
    if (state[name] !== null) query.set(name, state[name]);
  }
  const options = applicable(state.decoder ?? "npad", state.options);
  for (const [name, value] of Object.entries(options)) query.set(name, value);
  return query;
}

/** The query of the page: the search, and what of its results is in view. */
export function toQuery(state) {
  const query = toSearch(state);
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
