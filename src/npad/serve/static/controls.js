// The controls: the decoder and its options, as a form.

import { html } from "./dom.js";
import { titleOf } from "./captions.js";
import { given, learn, offered } from "./options.js";
import { drawSchedule, parse, spell } from "./schedule.js";
import { besideOf, spellStrategy } from "./state.js";
import { define, rename } from "./tips.js";

// Until the server has said what it offers.
const USUAL = {
  chains: 50,
  sigma: 0.3,
  schedule: "1/t",
  distribution: "gaussian",
  site: "hidden",
  relative: false,
  inner: "greedy",
  width: 5,
  eta: 0.001,
  temperature: 1,
  samples: 50,
  selector: "most-probable",
  seed: 0,
  budget: 5000,
  max_length: 200,
};
const NUMBERS = new Set([
  "chains",
  "sigma",
  "width",
  "eta",
  "temperature",
  "samples",
  "seed",
  "budget",
  "max_length",
]);

// What a strategy may be shown beside; the decoders must be the model's.
const BESIDE = [
  ["decoder=greedy", "greedy search"],
  ["decoder=beam&width=5", "a beam of 5"],
  ["decoder=sampling&samples=50&temperature=0.5", "50 samples, T 0.5"],
  ["decoder=diverse&width=5", "diverse decoding"],
  ["decoder=npad&chains=50", "NPAD, 50 chains"],
];
const DEPENDENT = ["selector", "inner", "samples"]; // options whose default differs by decoder
const PRESENT = "present"; // what is shown now, to change the other

export class Controls {
  /**
   * @param {HTMLFormElement} form its fields are named as the options are
   * @param {SVGElement} curve where the schedule is drawn
   * @param {(name: string) => void} onChange called with the name of what the user has changed
   */
  constructor(form, curve, onChange) {
    this.form = form;
    this.curve = curve;
    this.onChange = onChange;
    this.models = [];
    this.added = []; // names of options that only the server knows
    this.state = null;
    form.addEventListener("input", (event) => this.#input(event.target));
    form.addEventListener("change", (event) => this.#change(event.target));
  }

  /** Offer what the server's models have. */
  offer(models, state) {
    this.models = models;
    this.state = state;
    for (const name of learn(models)) {
      if (!this.form.elements[name]) this.#add(name);
    }
    this.show(this.state);
  }

  /** Add a field for an option that the page does not know. */
  #add(name) {
    const type = typeof this.model?.defaults?.[name] === "boolean" ? "checkbox" : "text";
    const label = html("label", { "data-option": name });
    label.append(html("span", { class: "term" }, spoken(name)), html("input", { type, name }));
    this.form.querySelector(".settings").append(label);
    this.added.push(name);
  }

  /** Explain the fields that were added, as the server describes its parameters. */
  explain(parameters) {
    for (const { name, description, schema } of parameters ?? []) {
      const meaning = description ?? schema?.description;
      if (!meaning || !this.added.includes(name)) continue;
      define(name, spoken(name), `${meaning}.`);
      rename(this.form.elements[name].closest("label"), name);
    }
  }

  /** The description of the chosen model; undefined before the server has answered. */
  get model() {
    return this.models.find((model) => model.id === this.state?.model) ?? this.models[0];
  }

  /** Show a state in the form. Values stay exactly as they were given until the user changes them. */
  show(state) {
    this.state = state;
    if (state === null) return;
    const { elements } = this.form;
    const { model } = this;
    if (elements.text.value !== (state.text ?? "")) elements.text.value = state.text ?? "";
    this.#offerBeside();
    fill(
      elements.model,
      this.models.map(({ id }) => id),
      state.model ?? model?.id,
    );
    fill(elements.decoder, model?.decoders, state.decoder);
    fill(elements.site, model && Object.keys(model.sites), this.value("site"));
    fill(elements.distribution, model?.distributions, this.value("distribution"));
    fill(elements.selector, model?.selectors, this.value("selector"));
    const schedule = parse(this.value("schedule"));
    fill(
      elements.schedule,
      model?.schedules?.map((text) => parse(text).name),
      schedule.name,
    );
    elements.parameter.value = schedule.value ?? "";
    this.#reveal("parameter", schedule.parameter !== null);
    this.form.querySelector("[data-name=parameter]").textContent = schedule.parameter ?? "";
    elements.inner.value = this.value("inner");
    for (const name of ["relative", ...NUMBERS, ...this.added]) {
      const value = String(this.value(name) ?? "");
      if (elements[name].type === "checkbox") elements[name].checked = value === "true";
      else if (elements[name].value !== value) elements[name].value = value;
    }
    this.#render();
  }

  /** An option's value: as chosen, the model's default, or the usual one. */
  value(name) {
    const chosen = this.state.options[name];
    return given(chosen) ? chosen : (this.model?.defaults?.[name] ?? USUAL[name]);
  }

  #input(field) {
    if (!this.state || field.name === "text") return;
    this.#take(field);
    this.#render();
  }

  #change(field) {
    if (!this.state || field.name === "text") return;
    this.#take(field);
    this.onChange(field.name);
  }

  #take(field) {
    const { options } = this.state;
    const { schedule, parameter } = this.form.elements;
    if (field.name === "model") {
      this.state.model = field.value;
      this.state.options = {};
    } else if (field.name === "decoder") {
      this.state.decoder = field.value;
      for (const name of DEPENDENT) delete options[name];
    } else if (field.name === "against") {
      const { value } = field;
      this.state.against = value === PRESENT ? spellStrategy(this.state) : value || null;
    } else if (field === schedule) {
      const plain = parse(field.value);
      options.schedule = spell(plain.name, plain.parameter, plain.value);
    } else if (field === parameter) {
      const { name, parameter: named } = parse(this.value("schedule"));
      options.schedule = spell(name, named, field.value);
    } else options[field.name] = field.type === "checkbox" ? String(field.checked) : field.value;
  }

  /** Offer strategies to show beside this one. */
  #offerBeside() {
    const { against } = this.form.elements;
    const decoders = this.model?.decoders;
    const choices = [
      ["", "nothing"],
      ...BESIDE.filter(([value]) => {
        const { decoder } = besideOf({ against: value });
        return !decoders || decoders.includes(decoder);
      }),
      [PRESENT, "this one, to change the other"],
    ];
    const chosen = this.state.against ?? "";
    if (!choices.some(([value]) => value === chosen)) {
      const { decoder, options } = besideOf(this.state);
      choices.push([chosen, `${titleOf({ decoder, ...options })}, as it was`]);
    }
    against.replaceChildren(...choices.map(([value, text]) => html("option", { value }, text)));
    against.value = chosen;
  }

  /** Show the fields that go with the decoder, the value of σ₀ and the schedule's curve. */
  #render() {
    const names = offered(this.state.decoder ?? "npad", this.value("inner"));
    for (const label of this.form.querySelectorAll("[data-option]")) {
      label.hidden = !names.includes(label.dataset.option);
    }
    this.form.querySelector("#settings-summary").textContent = summary(
      (name) => this.value(name),
      names,
    );
    const sigma = Number(this.value("sigma"));
    this.form.elements.shown_sigma.value = Number.isFinite(sigma)
      ? sigma.toFixed(2)
      : this.value("sigma");
    rename(this.form.elements.decoder.closest("label"), this.state.decoder ?? "npad");
    drawSchedule(this.curve, this.value("schedule"), Number.isFinite(sigma) ? sigma : 0);
  }

  #reveal(name, shown) {
    this.form.elements[name].closest("label").hidden = !shown;
  }
}

const spoken = (name) => name.replaceAll("_", " ");

/** The options in a line. */
function summary(value, names) {
  const parts = {
    chains: () => `${value("chains")} chains of ${value("inner")}`,
    sigma: () => `σ₀ ${value("sigma")}, ${value("schedule")}`,
    width: () => `width ${value("width")}`,
    samples: () => `${value("samples")} samples`,
    temperature: () => `temperature ${value("temperature")}`,
    selector: () => String(value("selector")),
    seed: () => `seed ${value("seed")}`,
    budget: () => `budget ${value("budget")}`,
    max_length: () => `at most ${value("max_length")} tokens`,
  };
  return Object.keys(parts)
    .filter((name) => names.includes(name))
    .map((name) => parts[name]())
    .join(" · ");
}

const bare = (text) => String(text).split("(")[0];

/** Offer values in a select, keeping the chosen one even if the server does not list it. */
function fill(select, values, chosen) {
  const offers = values?.length
    ? [...new Set(values)]
    : [...select.options].map((option) => option.value);
  if (given(chosen) && !offers.includes(chosen)) {
    const place = offers.findIndex((offer) => bare(offer) === bare(chosen)); // with other fields
    offers.splice(place < 0 ? offers.length : place, place < 0 ? 0 : 1, chosen);
  }
  const current = [...select.options].map((option) => option.value);
  if (offers.join("\n") !== current.join("\n")) {
    select.replaceChildren(...offers.map((value) => html("option", { value }, value)));
  }
  if (given(chosen)) select.value = chosen;
}
