// The page: one text, one button, and pictures of the search.

import { get, keepToken, Refused } from "./api.js";
import { byId } from "./dom.js";
import { Controls } from "./controls.js";
import { offered } from "./options.js";
import { Run } from "./run.js";
import { fromQuery, remember, toRequest } from "./state.js";
import { events } from "./stream.js";
import { lookAt, STEPS, showTour, stateOf } from "./tour.js";
import { View } from "./view.js";

const EXAMPLE = "She spends most of her money on books.";

const form = byId("ask");
const view = new View(onView);
const controls = new Controls(form, byId("curve"), () => search({ entry: true }));
let state = complete(fromQuery(location.search));
let stopping = new AbortController();

function complete(read) {
  const touring = read.tour !== null && read.tour >= 1 && read.tour <= STEPS.length;
  if (!touring) read.tour = null;
  if (touring && read.text === null) return stateOf(read.tour);
  return { ...read, text: read.text ?? EXAMPLE, decoder: read.decoder ?? "npad" };
}

/** Search, and show what happens. `entry`: the address before it stays in the history. */
async function search({ entry = false } = {}) {
  stopping.abort();
  stopping = new AbortController();
  const { signal } = stopping;
  if (entry) Object.assign(state, { at: null, pick: null });
  remember(state, entry);
  controls.show(state);
  document.title = `${state.text.slice(0, 50)} · npad`;
  const run = new Run(state);
  say("");
  document.body.dataset.search = "searching";
  view.begin(run);
  try {
    for await (const [event, data] of events(toRequest(state), signal)) {
      if (signal.aborted) return;
      run.receive(event, data);
      if (event === "start") adopt(data);
      view.changed();
    }
    if (run.done === null)
      throw new Refused("the stream ended before the search did; try again", 0);
    document.body.dataset.search = "done";
    byId("announcement").textContent = `Done: ${run.done.text || "an empty output"}`;
    await view.compare(run, signal);
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) fail(error);
  }
}

/** Take over every option as the server resolved it, so that the address says it all. */
function adopt({ model, options }) {
  state.model = model;
  for (const name of offered(state.decoder, options.inner)) {
    if (options[name] !== undefined && options[name] !== null)
      state.options[name] = String(options[name]);
  }
  remember(state);
  controls.show(state);
  nameLanguages();
}

/** Tell screen readers which language to read. */
function nameLanguages() {
  const { source = "", target = "" } = controls.model ?? {};
  form.elements.text.lang = source ?? "";
  for (const id of ["translation", "n-best-rows"]) byId(id).lang = target ?? "";
}

function fail(error) {
  document.body.dataset.search = "failed";
  if (!(error instanceof Refused)) console.error(error);
  say(error.message);
  byId("token").hidden = error.status !== 401;
}

function say(problem) {
  byId("problem").textContent = problem;
  byId("problem").hidden = !problem;
}

/** The user has moved to another step, or picked another output. */
function onView(changes) {
  Object.assign(state, changes);
  remember(state);
}

function tour(step) {
  if (step === null) state.tour = null;
  else state = stateOf(step);
  showTour(byId("tour"), step, tour);
  if (step === null) remember(state, true);
  else {
    search({ entry: true });
    lookAt(byId("tour"), step);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  state.text = form.elements.text.value;
  search({ entry: true });
});
form.elements.text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").elements.token.value);
  byId("token").hidden = true;
  begin();
});
byId("take-tour").addEventListener("click", () => tour(1));
byId("share").addEventListener("click", async (event) => {
  const button = event.currentTarget;
  try {
    await navigator.clipboard.writeText(location.href); // absent unless the page is local or encrypted
    button.textContent = "Link copied";
  } catch {
    button.textContent = "Copy it from the address bar";
  }
  setTimeout(() => (button.textContent = "Copy link"), 2500);
});
addEventListener("popstate", () => {
  state = complete(fromQuery(location.search));
  showTour(byId("tour"), state.tour, tour);
  search();
});

async function begin() {
  showTour(byId("tour"), state.tour, tour);
  const searching = search();
  try {
    controls.offer((await get("v1/models")).data);
    nameLanguages();
  } catch (error) {
    fail(error);
  }
  await searching;
}

begin();
