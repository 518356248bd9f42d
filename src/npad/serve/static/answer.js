// The output so far: its words, tinted by how many chains agree, and what is known of it.

import { agreement, commonSubsequence } from "./agreement.js";
import { plural } from "./captions.js";
import { html, refill, vary } from "./dom.js";
import { count, logProb, probability, seconds, whole } from "./format.js";
import { term } from "./tips.js";
import { readFrom } from "./verdict.js";
import { starts, words } from "./words.js";

/**
 * Show the best output so far; `line` gets its words, `facts` what is known of it.
 *
 * @param {boolean} fixes whether words are buttons, each with all before it as its value
 */
export function showAnswer(line, facts, run, pick, fixes) {
  const chosen = run.hypotheses[pick ?? 0] ?? run.bests.at(-1);
  if (!chosen) {
    const { source, chains } = run.start;
    const rows = count(chains, run.noun, plural(run.noun));
    refill(facts, `${count(source.length, "token")} read; ${rows} to search`);
    return;
  }
  const grouped = words(chosen.tokens, run.marked);
  const shares = agreement(
    grouped.map((word) => word.text),
    run.outputs(),
  );
  const several = run.chains.size > 1;
  line.classList.toggle("tinted", several);
  refill(facts, ...factsOf(run, chosen));
  const offered = fixes && run.done !== null;
  const fixed = (run.state.prefix ?? "").trimEnd().length;
  const key = JSON.stringify([chosen.tokens, shares, several, offered, fixed]);
  if (line.dataset.shown === key) return; // what has the focus keeps it
  line.dataset.shown = key;
  const begins = starts(grouped, chosen.text);
  const tinted = grouped.map((word, i) => {
    const title = several
      ? `${Math.round(100 * shares[i])} % of ${run.chains.size} ${plural(run.noun)}`
      : null;
    const name = begins[i] + word.text.length <= fixed ? "word fixed" : "word";
    const before = chosen.text.slice(0, begins[i]);
    const shown = offered
      ? html("button", { type: "button", class: name, title, value: before }, word.text)
      : html("span", { class: name, title }, word.text);
    return vary(shown, "--share", several ? `${Math.round(100 * shares[i])}%` : "0%");
  });
  line.replaceChildren(...spaced(tinted));
}

/** Show the output of one of two strategies, with the words marked that the other's has not. */
export function showSide({ title, line, facts }, run, other) {
  title.textContent = run.title ?? "";
  const [best] = run.hypotheses;
  if (!best) return;
  const listed = textsOf(run);
  const common = new Set(commonSubsequence(listed, other?.done ? textsOf(other) : listed));
  const shown = listed.map((text, i) => html(common.has(i) ? "span" : "mark", {}, text));
  line.replaceChildren(...spaced(shown));
  refill(facts, ...factsOf(run, best, false));
}

const textsOf = (run) => words(run.hypotheses[0].tokens, run.marked).map((word) => word.text);

/** Words with spaces between them, or what stands for none. */
function spaced(shown) {
  if (shown.length === 0) return [html("span", { class: "quiet" }, "(an empty output)")];
  return shown.flatMap((word, i) => (i ? [" ", word] : [word]));
}

function factsOf(run, chosen, all = true) {
  const facts = [[term("log-p"), ` ${logProb(chosen.log_prob)}`]];
  const { done } = run;
  if (all) facts.push([term("probability"), ` ${probability(chosen.log_prob)}`]);
  if (done) {
    if (all && chosen === run.hypotheses[0] && Number.isFinite(done.confidence)) {
      const chrf = html("span", { title: `by ${readFrom(done.signal)}` }, Math.round(done.confidence));
      facts.push([term("expected-chrf"), " ", chrf]);
    }
    const { search, rescoring } = done.calls;
    const calls = [`${whole(search)} `, term("calls", search === 1 ? "model call" : "model calls")];
    if (rescoring) calls.push(` and ${whole(rescoring)} `, term("rescored", "to re-score"));
    facts.push(calls, [seconds(done.seconds)]);
    if (!done.complete) facts.push(["stopped at the deadline"]);
  } else {
    const rows = count(run.start.chains, run.noun, plural(run.noun));
    facts.push([`${run.chains.size} of ${rows} so far`]);
  }
  return facts.map((fact) => html("span", {}, ...fact));
}
