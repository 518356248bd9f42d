// What the page says of the pictures, in the words of the decoder that ran.

import { byId } from "./dom.js";
import { term } from "./tips.js";

// Decoder -> what its rows are called, as the glossary has it; others hold hypotheses.
const ROWS = {
  npad: "chain",
  sampling: "sample",
  "shared-sampling": "sample",
  epsilon: "sample",
  arithmetic: "sample",
};
const BEAMS = ["beam", "diverse", "stochastic-beam"]; // they drop prefixes on the way

/** What a row of the search is called: chain, sample or hypothesis. */
export const rowOf = (decoder) => ROWS[decoder] ?? "hypothesis";

export const plural = (noun) => (noun === "hypothesis" ? "hypotheses" : `${noun}s`);

/** A decoder's short name, as in `NPAD-50` or `beam 5`. */
export function titleOf({ decoder, chains, inner, width, samples }) {
  if (decoder === "npad")
    return inner && inner !== "greedy" ? `NPAD-${chains}, ${inner}` : `NPAD-${chains}`;
  if (decoder === "beam" || decoder === "diverse") return `${decoder} ${width}`;
  if (decoder === "sampling") return `${samples} samples`;
  return decoder === "greedy" || decoder === "exact" ? `${decoder} search` : decoder;
}

/** Write the captions for a decoder. */
export function showCaptions(decoder) {
  const row = rowOf(decoder);
  const [rows, several] = [plural(row), decoder !== "greedy"];
  fill("lattice-lead", ...lattice(decoder, row));
  fill("key-width", "width: ", row === "hypothesis" ? rows : term(row, rows));
  fill("tint-of", term("agreement", `how many ${rows} have the same word`));
  fill("n-best-lead", "The distinct outputs, best first. Choose one to see its path in the tree.");
  fill("n-best-found", rows);
  byId("n-best").toggleAttribute("data-plain", row === "hypothesis");
  fill("cost-lead", ...cost(decoder));
  fill("key-unknown", decoder === "npad" ? term("rescored", "not re-scored yet") : "dropped");
  for (const [id, shown] of [
    ["key-width", several],
    ["key-greedy", several],
    ["key-unknown", decoder === "npad" || BEAMS.includes(decoder)],
  ]) {
    byId(id).closest("li").hidden = !shown;
  }
}

function lattice(decoder, row) {
  const prefix = (text) => term("prefix", text);
  if (decoder === "greedy")
    return [term("greedy", "Greedy search"), " has one branch: one token after another."];
  if (BEAMS.includes(decoder))
    return [
      "Every ",
      prefix("prefix"),
      " that the beam held is a branch; it dropped the faint ones.",
    ];
  if (row === "hypothesis")
    return ["Every ", prefix("prefix"), " that the search held is a branch."];
  const rows = row === "chain" ? term("chain", "chains") : plural(row);
  return [
    "Every ",
    prefix("prefix"),
    " is a branch: the more ",
    rows,
    " have it, the wider it is.",
  ];
}

function cost(decoder) {
  const found = ["the best ", term("clean"), " ", term("log-p"), " so far"];
  const calls = term("calls");
  if (decoder === "npad")
    return [
      "The line shows ",
      ...found,
      " as one chain after another ends, and its cost in ",
      calls,
      ".",
    ];
  return ["What this search found, and what others find for their cost in ", calls, "."];
}

const fill = (id, ...children) => byId(id).replaceChildren(...children);
