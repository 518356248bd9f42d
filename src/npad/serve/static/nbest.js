// The table of n-best outputs; a row picked is the one whose attention and path are shown.

import { html } from "./dom.js";
import { logProb, probability } from "./format.js";

const SHOWN = 12;

/** Fill the body of the table; `onPick` is called with a row's number. */
export function showNBest(body, run, pick, onPick) {
  const rows = run.hypotheses.slice(0, SHOWN).map((hypothesis, i) => {
    const text = hypothesis.text || "(empty)";
    const button = html(
      "button",
      { type: "button", class: "plain", "aria-pressed": String(i === pick) },
      text,
    );
    button.addEventListener("click", () => onPick(i));
    const note = hypothesis.proven ? "proven" : hypothesis.finished ? "" : "cut";
    return html(
      "tr",
      { class: i === pick ? "picked" : null },
      html("td", { class: "number" }, String(i + 1)),
      html(
        "th",
        { scope: "row" },
        button,
        note ? html("span", { class: "note" }, ` ${note}`) : null,
      ),
      html("td", { class: "number" }, logProb(hypothesis.log_prob)),
      html("td", { class: "number" }, probability(hypothesis.log_prob)),
      html("td", { class: "number found" }, String(hypothesis.chains?.length ?? 1)),
    );
  });
  body.replaceChildren(...rows);
}
