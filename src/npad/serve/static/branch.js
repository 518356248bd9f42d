// What is known of one branch: its probability, its noise and its attention.

import { plural } from "./captions.js";
import { html, refill, vary } from "./dom.js";
import { count, logProb, probability } from "./format.js";
import { term } from "./tips.js";
import { piece } from "./words.js";

const ATTENDED = 6; // words of the source
const HINT = matchMedia("(hover: none)").matches
  ? "Tap a branch to see its numbers."
  : "Point at a branch, or reach it with Tab and the arrow keys.";

/** Describe a node of the lattice in `panel`; without one, where the output leaves greedy search. */
export function showBranch(panel, pointed, lattice) {
  const node = pointed ?? (lattice.run?.done ? lattice.parting : null);
  if (!node) {
    panel.replaceChildren(html("p", { class: "quiet" }, HINT));
    return;
  }
  const { run } = lattice;
  const hint = pointed
    ? null
    : html(
        "p",
        { class: "quiet" },
        `${HINT} ${node.isEnd ? "Here the output ends:" : "Here the output leaves greedy search:"}`,
      );
  const through = lattice.through(node);
  const score = lattice.scores.get(node.key);
  const facts = [[plural(run.noun), `${through.length} of ${run.start.chains}`]];
  if (score) {
    facts.push([
      term("probability"),
      `${probability(score.total)}  (log p ${logProb(score.total)})`,
    ]);
    facts.push([node.isEnd ? "of ending here" : "of this token", probability(score.token)]);
  }
  const noise = noiseAt(node, through, run);
  if (noise !== null) facts.push([term("norm"), noise]);
  refill(
    panel,
    ...[hint].filter(Boolean),
    html(
      "p",
      { class: "prefix" },
      run.sentence(node.tokens) || "(nothing)",
      node.isEnd ? html("span", { class: "quiet" }, " — end") : null,
    ),
    html(
      "dl",
      {},
      ...facts.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]),
    ),
    ...[attended(node, run)].filter(Boolean),
  );
}

/** The norm of the noise that the chains of a branch had before its token. */
function noiseAt(node, through, run) {
  const norms = through
    .map((chain) => run.chains.get(chain)?.noise?.[node.depth - 1])
    .filter((norm) => norm !== undefined && norm !== null);
  if (norms.length === 0) return null;
  const [least, most] = [Math.min(...norms), Math.max(...norms)];
  const range = least === most ? least.toFixed(2) : `${least.toFixed(2)} to ${most.toFixed(2)}`;
  const over = `over ${count(norms.length, run.noun, plural(run.noun))}`;
  return norms.length > 1 ? `${range}, ${over}` : range;
}

/** The most attended words of the source, each with a bar as long as the attention to it. */
function attended(node, run) {
  const weights = attentionAt(node, run);
  if (weights === null) return null;
  const most = weights.map((_, i) => i).sort((a, b) => weights[b] - weights[a]);
  const shown = most.slice(0, ATTENDED).sort((a, b) => a - b);
  const items = shown.map((i) =>
    html(
      "li",
      {},
      html("span", { class: "source" }, piece(run.start.source[i] ?? "")),
      vary(
        html("span", { class: "bar", "aria-hidden": "true" }),
        "--share",
        `${Math.round(100 * weights[i])}%`,
      ),
      html("span", { class: "number" }, `${Math.round(100 * weights[i])} %`),
    ),
  );
  return html(
    "div",
    {},
    html("p", { class: "quiet" }, term("attention"), " to the source"),
    html("ol", { class: "attended" }, ...items),
  );
}

/** The attention of a node's token, from any output that has its prefix; null if none is known. */
function attentionAt(node, run) {
  const { tokens, depth, isEnd } = node;
  const output = run.hypotheses.find(
    (hypothesis) =>
      hypothesis.attention?.[depth - 1] &&
      (!isEnd || hypothesis.tokens.length === tokens.length) &&
      tokens.every((token, i) => hypothesis.tokens[i] === token),
  );
  return output?.attention[depth - 1] ?? null;
}
