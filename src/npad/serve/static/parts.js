// The parts of a text with several sentences or lines: each with its output, one of them in view.

import { post } from "./api.js";
import { byId, html } from "./dom.js";
import { join } from "./sentences.js";
import { doubtOf, warning } from "./verdict.js";

const AT_ONCE = 4; // parts in a request, so that outputs come soon and one after another

export class Parts {
  /** @param {(part: number) => void} onChoose called with the part to show */
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.key = null; // of the search whose outputs are kept
    this.outputs = new Map(); // the text of a part -> its output
  }

  /** Show the parts of a run's text, before anything is known of them. */
  begin(run) {
    this.run = run;
    const several = run.parts.length > 1;
    byId("parts").hidden = !several;
    byId("answer-title").textContent = several
      ? `Sentence ${run.part + 1} of ${run.parts.length}`
      : "Output";
    if (several) this.#draw();
  }

  /** The server has said which options the run has; outputs of others are no longer true. */
  adopt({ model, options }, decoder) {
    const key = JSON.stringify([model, decoder, options]);
    if (key !== this.key) this.outputs.clear();
    this.key = key;
  }

  /** Decode the parts that no run has shown yet. */
  async fill(run, language, signal) {
    this.#note(run.text, run.done.text, doubtOf(run, language));
    const texts = [...new Set(run.parts.map(({ text }) => text))];
    const missing = texts.filter((text) => !this.outputs.has(text));
    const { model } = run.start;
    while (missing.length) {
      const text = missing.splice(0, AT_ONCE);
      const { results } = await post("v1/decode", { text, model, ...run.asked }, signal);
      text.forEach((part, i) => {
        const { text: output, log_prob, hypotheses, ...trust } = results[i];
        const rivals = hypotheses.slice(1).map((hypothesis) => hypothesis.text);
        const best = { ...hypotheses[0], ...trust, rivals, logProb: log_prob ?? -Infinity };
        this.#note(part, output, warning(best, language));
      });
    }
  }

  /** The outputs so far, with the line breaks and spaces of the text. */
  get text() {
    const { parts } = this.run;
    return join(
      parts,
      parts.map(({ text }) => this.outputs.get(text)?.text),
    );
  }

  #note(text, output, doubt) {
    this.outputs.set(text, { text: output, doubt });
    if (this.run.parts.length > 1) this.#draw();
  }

  #draw() {
    const { parts, part } = this.run;
    const focused = [...byId("parts-list").querySelectorAll("button")].indexOf(
      document.activeElement,
    );
    const rows = parts.map(({ text }, i) => {
      const output = this.outputs.get(text);
      const button = html(
        "button",
        { type: "button", class: "plain", "aria-pressed": String(i === part) },
        text,
      );
      button.addEventListener("click", () => this.onChoose(i));
      return html(
        "li",
        { class: i === part ? "picked" : null },
        button,
        html(
          "p",
          { lang: byId("translation").lang },
          output ? output.text || "(empty)" : html("span", { class: "quiet" }, "…"),
        ),
        output?.doubt ? html("p", { class: "note" }, output.doubt) : null,
      );
    });
    byId("parts-list").replaceChildren(...rows);
    if (focused >= 0) byId("parts-list").querySelectorAll("button")[focused]?.focus();
  }
}
