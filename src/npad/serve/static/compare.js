// Other strategies on the same text: what each reaches, and for how many model calls.

import { post } from "./api.js";
import { html } from "./dom.js";
import { logProb, whole } from "./format.js";
import { term } from "./tips.js";

const PROVEN = "optimum, proven";
const BUDGET = 2000; // model calls of exact search before it gives up

/** The strategies to compare with: greedy search, a beam of 5, as many samples as chains, exact. */
function strategies(run) {
  const { chains = 50, seed = 0, decoder } = run.options;
  const samples = decoder === "npad" ? chains : 50;
  return [
    { name: "greedy search", body: { decoder: "greedy" } },
    { name: "beam 5", body: { decoder: "beam", width: 5 } },
    { name: `${samples} samples`, body: { decoder: "sampling", samples, seed } },
    { name: "exact", body: { decoder: "exact", budget: BUDGET } },
  ];
}

/** Yield {decoder, name, text, tokens, logProb, search, rescoring, proven} of each strategy in turn. */
export async function* comparisons(run, signal) {
  const { max_length } = run.options;
  const { prefix } = run.state;
  for (const { name, body } of strategies(run)) {
    const given = { text: run.text, model: run.start.model, ...body };
    if (max_length !== undefined) given.max_length = max_length;
    if (prefix) given.prefix = prefix;
    const { results } = await post("v1/decode", given, signal);
    const [result] = results;
    const exact = body.decoder === "exact";
    yield {
      decoder: body.decoder,
      name: exact ? (result.proven ? PROVEN : "exact, gave up") : name,
      text: result.text,
      tokens: result.hypotheses[0].tokens,
      logProb: result.log_prob ?? -Infinity,
      ...result.calls,
      proven: Boolean(exact && result.proven),
    };
  }
}

/** Fill the table of strategies, this run's own first. */
export function showComparison(body, run, references) {
  const best = run.hypotheses[0];
  const own = best && {
    name: run.title,
    text: best.text,
    logProb: best.log_prob,
    ...run.done.calls,
    own: true,
  };
  const rows = [...(own ? [own] : []), ...references].map((row) =>
    html(
      "tr",
      { class: row.own ? "picked" : null },
      html("th", { scope: "row" }, row.proven ? term("proven", row.name) : row.name),
      html("td", {}, row.text || "(empty)"),
      html("td", { class: "number" }, logProb(row.logProb)),
      html("td", { class: "number" }, whole(row.search)),
      html("td", { class: "number" }, row.rescoring ? whole(row.rescoring) : "–"),
    ),
  );
  body.replaceChildren(...rows);
}
