// The translation so far, its words tinted by how many chains agree.

import { agreement } from "./agreement.js";
import { html, vary } from "./dom.js";
import { count, logProb, probability, seconds, whole } from "./format.js";
import { words } from "./words.js";

/** Show the best output so far; `line` gets its words, `facts` what is known of it. */
export function showAnswer(line, facts, run, pick) {
  const chosen = run.hypotheses[pick ?? 0] ?? run.bests.at(-1);
  if (!chosen) {
    const { source, chains } = run.start;
    facts.replaceChildren(
      `${count(source.length, "token")} read; ${count(chains, run.noun)} to search`,
    );
    return;
  }
  const grouped = words(chosen.tokens, run.marked);
  const shares = agreement(
    grouped.map((word) => word.text),
    run.outputs(),
  );
  const several = run.chains.size > 1;
  line.classList.toggle("tinted", several);
  const tinted = grouped.flatMap((word, i) => {
    const title = several
      ? `${Math.round(100 * shares[i])} % of ${run.chains.size} ${run.noun}s`
      : null;
    const shown = html("span", { class: "word", title }, word.text);
    vary(shown, "--share", several ? `${Math.round(100 * shares[i])}%` : "0%");
    return i ? [" ", shown] : [shown];
  });
  line.replaceChildren(
    ...(tinted.length ? tinted : [html("span", { class: "quiet" }, "(an empty output)")]),
  );
  facts.replaceChildren(...factsOf(run, chosen).map((fact) => html("span", {}, fact)));
}

function factsOf(run, chosen) {
  const facts = [
    `log p ${logProb(chosen.log_prob)}`,
    `probability ${probability(chosen.log_prob)}`,
  ];
  const { done } = run;
  if (done) {
    if (chosen === run.hypotheses[0] && Number.isFinite(done.confidence)) {
      facts.push(`expected chrF ${Math.round(done.confidence)}`);
    }
    const { search, rescoring } = done.calls;
    facts.push(
      count(search, "model call") + (rescoring ? ` and ${whole(rescoring)} to re-score` : ""),
    );
    facts.push(seconds(done.seconds));
    if (!done.complete) facts.push("stopped at the deadline");
  } else {
    facts.push(`${run.chains.size} of ${count(run.start.chains, run.noun)} so far`);
  }
  return facts;
}
