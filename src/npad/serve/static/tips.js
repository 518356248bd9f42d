// Explanations of the glossary's words, on hover, keyboard focus and tap. Assistive technology finds
// them by aria-describedby; Escape closes a tip, and the pointer may rest on it.

import { byId, html, vary } from "./dom.js";
import { TERMS } from "./glossary.js";

const CONTROLS = "input, select, textarea, button";
const LINGER = 150; // milliseconds from leaving a word until its tip goes, enough to reach the tip
const EDGE = 8; // pixels between a tip and its word, or the edge of the screen

const meaningOf = (name) => `means-${name}`;

/** A word of the glossary, or a text in its place, that explains itself. */
export function term(name, text = TERMS[name][0]) {
  const known = name in TERMS;
  const element = html("dfn", known ? { "data-term": name } : {}, text);
  if (known) describe(element);
  return element;
}

/** Explain another word from now on: what a select has chosen. */
export function rename(element, name) {
  if (!(name in TERMS)) return;
  element.dataset.term = name;
  describe(element);
}

/** Add a word to the glossary, unless it has it. */
export function define(name, word, meaning) {
  if (name in TERMS) return;
  TERMS[name] = [word, meaning];
  list(name);
}

function list(name) {
  const [word, meaning] = TERMS[name];
  const entry = html("dd", { id: meaningOf(name) }, meaning);
  byId("glossary-list").append(html("dt", {}, word), entry);
}

/**
 * Fill the glossary, and let every word on the page explain itself. The list is hidden, and not in
 * a closed <details>: there, aria-describedby does not find it.
 */
export function explain() {
  Object.keys(TERMS).forEach(list);
  byId("glossary").addEventListener("click", ({ currentTarget }) => {
    const shown = byId("glossary-list").toggleAttribute("hidden");
    currentTarget.setAttribute("aria-expanded", String(!shown));
  });
  document.querySelectorAll("[data-term]").forEach(describe);
  const tip = new Tip(byId("tip"));
  document.addEventListener("pointerover", (event) => tip.enter(event));
  document.addEventListener("pointerout", () => tip.leave());
  document.addEventListener("focusin", ({ target }) => tip.focus(target));
  document.addEventListener("focusout", () => tip.hide());
  document.addEventListener("click", ({ target }) => tip.tap(target));
  document.addEventListener("keydown", ({ key }) => key === "Escape" && tip.hide());
  addEventListener("scroll", () => tip.place(), { capture: true, passive: true });
}

/** A label's words are those of its control; others are reached with the Tab key themselves. */
function describe(element) {
  const control = element.matches(CONTROLS) ? element : element.querySelector(CONTROLS);
  if (!control) element.tabIndex = 0;
  (control ?? element).setAttribute("aria-describedby", meaningOf(element.dataset.term));
}

class Tip {
  constructor(panel) {
    this.panel = panel;
    this.word = null; // that is explained
    this.timer = null;
  }

  enter({ target, pointerType }) {
    clearTimeout(this.timer);
    if (pointerType === "touch" || this.panel.contains(target)) return;
    const word = target.closest?.("[data-term]");
    if (word) this.show(word);
    else this.leave();
  }

  leave() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.hide(), LINGER);
  }

  focus(target) {
    const word = target.closest?.("[data-term]");
    if (word && target.matches(":focus-visible")) this.show(word);
  }

  /** A tap on a word; one on a control is the control's. */
  tap(target) {
    const word = target.closest?.("dfn[data-term]");
    if (word) this.show(word);
  }

  show(word) {
    clearTimeout(this.timer);
    const { panel } = this;
    const [name, meaning] = TERMS[word.dataset.term];
    panel.replaceChildren(html("strong", {}, name), ` ${meaning}`);
    panel.hidden = false;
    this.word = word;
    this.place();
  }

  /** Move the tip to its word, wherever that has been scrolled to. */
  place() {
    const { panel, word } = this;
    if (panel.hidden) return;
    if (!word.isConnected) return this.hide();
    const at = (word.querySelector(".term") ?? word).getBoundingClientRect();
    const below = word.getBoundingClientRect().bottom;
    const { width, height } = panel.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - width - EDGE);
    const fits = at.top - height - EDGE > 0;
    vary(panel, "--left", `${Math.max(EDGE, left)}px`);
    vary(panel, "--top", `${fits ? at.top - height - EDGE : below + EDGE}px`);
  }

  hide() {
    clearTimeout(this.timer);
    this.panel.hidden = true;
  }
}
