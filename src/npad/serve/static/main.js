// The page: one text, one button, and pictures of the search.

import { get, keepToken, Refused } from "./api.js";
import { Controls } from "./controls.js";
import { byId, html } from "./dom.js";
import { examplesOf, firstText, isExample } from "./examples.js";
import { offered } from "./options.js";
import { Parts } from "./parts.js";
import { Run } from "./run.js";
import { besideOf, fromQuery, remember, toRequest } from "./state.js";
import { events } from "./stream.js";
import { explain } from "./tips.js";
import { lookAt, STEPS, showTour, stateOf } from "./tour.js";
import { doubtOf } from "./verdict.js";
import { View } from "./view.js";

const LONGEST = 5000; // characters of a text, so that its address is not too long

const form = byId("ask");
const view = new View(onView);
const parts = new Parts(choosePart);
const controls = new Controls(form, byId("curve"), onControls);
let state = complete(fromQuery(location.search));
let stopping = new AbortController();

function complete(read) {
  const touring = read.tour !== null && read.tour >= 1 && read.tour <= STEPS.length;
  if (!touring) read.tour = null;
  if (touring && read.text === null) return stateOf(read.tour);
  return { ...read, decoder: read.decoder ?? "npad" };
}

/** Search, and show what happens. `entry`: the address before it stays in the history. */
async function search({ entry = false } = {}) {
  stopping.abort();
  stopping = new AbortController();
  const { signal } = stopping;
  if (entry) Object.assign(state, { at: null, pick: null });
  remember(state, entry);
  controls.show(state);
  byId("beginning").hidden = state.prefix === null;
  byId("beginning").elements.prefix.value = state.prefix ?? "";
  offerExamples();
  document.title = `${state.text.slice(0, 50)} · npad`;
  const run = new Run(state);
  const other = besideOf(state);
  const beside = other && new Run(other);
  say("");
  byId("announcement").textContent = "";
  document.body.dataset.search = "searching";
  view.begin(run, beside);
  parts.begin(run);
  try {
    if (state.text.length > LONGEST)
      throw new Refused(
        `the page takes at most ${LONGEST} characters, and this text has ${state.text.length}; shorten it, or use npad translate for a file`,
        0,
      );
    await receive(run, signal, adopt);
    document.body.dataset.search = "done";
    byId("announcement").textContent =
      `Done: ${run.done.text || "an empty output"} ${doubtOf(run, view.language)}`;
    // What goes wrong beside the search takes nothing from its output.
    const onError = (error) => signal.aborted || fail(error, run);
    if (beside) await receive(beside, signal).catch(onError);
    await parts.fill(run, view.language, signal).catch(onError);
    signal.throwIfAborted();
    await view.compare(run, signal);
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) fail(error, run);
  }
}

/** Read the events of a run's search. */
async function receive(run, signal, onStart) {
  for await (const [event, data] of events(toRequest(run.state), signal)) {
    signal.throwIfAborted();
    run.receive(event, data);
    if (event === "start") onStart?.(data);
    view.changed();
  }
  signal.throwIfAborted();
  if (run.done === null) throw new Refused("the stream ended before the search did; try again", 0);
}

/** Take over every option as the server resolved it, so that the address says it all. */
function adopt({ model, options }) {
  state.model = model;
  for (const name of offered(state.decoder, options.inner)) {
    if (options[name] !== undefined && options[name] !== null)
      state.options[name] = String(options[name]);
  }
  parts.adopt({ model, options }, state.decoder);
  remember(state);
  controls.show(state);
  nameLanguages();
}

/** Tell screen readers which language to read. */
function nameLanguages() {
  const { source = "", target = "" } = controls.model ?? {};
  view.language = source;
  form.elements.text.lang = source ?? "";
  const outputs = ["translation", "prefix", "n-best-rows"];
  outputs.push("lattice-side-output", "beside-side-output");
  for (const id of outputs) byId(id).lang = target ?? "";
  view.fixes = Boolean(controls.model?.constrains);
}

/** Say what went wrong; without an output, nothing of the search before stays. */
function fail(error, run) {
  if (!(error instanceof Refused)) console.error(error);
  say(error.message);
  byId("token").hidden = error.status !== 401;
  if (run?.done) return;
  document.body.dataset.search = "failed";
  view.clear();
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

/** The user has changed the model, the decoder or an option, and perhaps the text before. */
function onControls(name) {
  const typed = form.elements.text.value;
  if (typed.trim() && typed !== state.text) {
    Object.assign(state, { text: typed, part: null, prefix: null });
  }
  if (name === "model") {
    state.prefix = null;
    const { model } = controls;
    const known = examplesOf(model);
    if (model.id === "toy" || (isExample(state.text) && !known.includes(state.text))) {
      Object.assign(state, { text: known[0] ?? firstText(model), part: null });
    }
  }
  search({ entry: true });
}

function choosePart(part) {
  Object.assign(state, { part: part || null, prefix: null });
  search({ entry: true });
}

function ask(text) {
  Object.assign(state, { text, part: null, prefix: null });
  search({ entry: true });
}

/** Fix what the output begins with, and decode on; null releases it. */
function fix(prefix) {
  state.prefix = prefix;
  search({ entry: true });
  const field = byId("beginning").elements.prefix;
  if (prefix === null) byId("translation").focus({ preventScroll: true });
  else field.focus({ preventScroll: true });
  field.setSelectionRange(field.value.length, field.value.length);
}

function offerExamples() {
  const chips = examplesOf(controls.model).map((text) => {
    const chosen = String(text === state.text);
    const chip = html("button", { type: "button", class: "chip", "aria-pressed": chosen }, text);
    chip.addEventListener("click", () => ask(text));
    return chip;
  });
  const place = byId("examples");
  const focused = [...place.querySelectorAll("button")].indexOf(document.activeElement);
  place.hidden = chips.length === 0;
  place.querySelector("div").replaceChildren(...chips);
  if (focused >= 0) chips[focused]?.focus();
}

async function tour(step) {
  if (step === null) state.tour = null;
  else state = stateOf(step);
  showTour(byId("tour"), step, tour);
  if (step === null) {
    remember(state, true);
    byId("take-tour").focus();
    return;
  }
  byId("tour").querySelector("h2").focus({ preventScroll: true });
  byId("tour").scrollTop = 0;
  const searching = search({ entry: true });
  const { signal } = stopping;
  lookAt(step);
  await searching;
  if (!signal.aborted) lookAt(step); // what stands above it has grown
}

/** Copy a text, and say so on the button for a while. */
async function copy(button, text, done, otherwise) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text); // absent unless the page is local or encrypted
    button.textContent = done;
  } catch {
    button.textContent = otherwise;
  }
  setTimeout(() => (button.textContent = name), 2500);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask(form.elements.text.value);
});
form.elements.text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
byId("translation").addEventListener("click", ({ target }) => {
  const word = target.closest("button.word");
  if (word) fix(word.value);
});
byId("beginning").addEventListener("submit", (event) => {
  event.preventDefault();
  fix(byId("beginning").elements.prefix.value);
});
byId("release").addEventListener("click", () => fix(null));
byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").elements.token.value);
  byId("token").hidden = true;
  begin();
});
byId("take-tour").addEventListener("click", () => tour(1));
for (const [id, text, done, otherwise] of [
  ["share", () => location.href, "Link copied", "Copy it from the address bar"],
  ["copy-output", () => view.text, "Copied", "Select and copy it"],
  ["copy-all", () => parts.text, "Copied", "Select and copy them"],
]) {
  byId(id).addEventListener("click", (event) => copy(event.target, text(), done, otherwise));
}
addEventListener("popstate", () => {
  state = complete(fromQuery(location.search));
  state.text ??= firstText(controls.model);
  showTour(byId("tour"), state.tour, tour);
  search();
});

async function begin() {
  showTour(byId("tour"), state.tour, tour);
  const searching = state.text === null ? null : search();
  try {
    const { data } = await get("v1/models");
    controls.offer(data, state);
    byId("take-tour").hidden = !data.some(({ id }) => id === "toy");
    state.text ??= firstText(controls.model);
    nameLanguages();
    view.changed();
    offerExamples();
    controls.explain((await get("openapi.json")).paths["/v1/decode/stream"]?.get?.parameters);
  } catch (error) {
    fail(error);
    return;
  }
  await (searching ?? search());
}

explain();
begin();
