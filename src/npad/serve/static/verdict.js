// What to make of an output, in sentences: beside greedy search, and where not to trust it.

import { count, whole } from "./format.js";
import { plural } from "./captions.js";

// Expected chrF. Of 2,000 ordinary sentences the tenth that en-de is least sure of has 39; Chinese,
// emoji and words that it has never read have 10 to 19.
const UNSURE = 40;
const UNKNOWN = 25;
// The same bound for models without an expected chrF, as a mean log-probability of tokens.
const UNKNOWN_LOG_PROB = -1.4;
const RIVALS = 2; // competing outputs in a warning; the table of outputs has all
const FAR = 1000; // times; more says nothing

/** How the best output compares with that of greedy search; "" if nothing is known. */
export function verdict(run) {
  const [best] = run.hypotheses;
  const { greedy } = run;
  if (!best || !greedy || run.options.decoder === "greedy") return "";
  if (same(best.tokens, greedy.tokens)) return "Greedy search finds the same output.";
  const found = best.chains?.length ?? 0;
  const by =
    run.noun === "hypothesis" || !found
      ? ""
      : `, and ${found} of ${count(run.start.chains, run.noun, plural(run.noun))} found it`;
  return `Greedy search ends with “${run.sentence(greedy.tokens)}”; this output is ${times(best.log_prob - greedy.logProb)}${by}.`;
}

function times(difference) {
  const ratio = Math.exp(Math.abs(difference));
  const how = difference >= 0 ? "more" : "less";
  if (!(ratio < FAR)) return `far ${how} probable`;
  if (ratio < 1.05) return "about as probable";
  const shown = ratio < 10 ? ratio.toFixed(1) : whole(Math.round(ratio));
  return `${shown} times ${how === "more" ? "as" : "less"} probable`;
}

/** What a confidence is read from, in words. */
export const readFrom = (signal) =>
  signal === "log-prob-per-token" ? "log p per token" : "how far the candidates agree";

/** The outputs that compete with the best one, as the reason for a doubt; "" without any. */
function why(rivals) {
  const shown = rivals.slice(0, RIVALS).map((text) => `“${text || "(empty)"}”`);
  return shown.length ? ` It also found ${shown.join(" and ")}.` : "";
}

/**
 * A warning where the model does not know a text, is unsure of it, or was cut short; "" if none.
 *
 * @param {object} output
 * @param {number?} output.confidence
 * @param {string?} output.signal what the confidence is read from
 * @param {boolean} output.doubtful whether the server was asked to mark an output of so little
 * @param {number} output.logProb
 * @param {string[]} output.tokens
 * @param {boolean} output.finished
 * @param {string[]} output.rivals the texts of the next best outputs
 * @param {string?} language the code of the language that the model reads
 */
export function warning(output, language) {
  const { confidence, signal, doubtful, logProb, tokens, finished, rivals = [] } = output;
  const estimated = Number.isFinite(confidence);
  const chrf = `expected chrF ${Math.round(confidence)} of 100, by ${readFrom(signal)}`;
  const unknown = estimated
    ? confidence < UNKNOWN
    : logProb / (tokens.length + 1) < UNKNOWN_LOG_PROB;
  if (unknown) {
    const reads = language ? ` It reads ${nameOf(language)}.` : "";
    const estimate = estimated ? ` (${chrf})` : "";
    return `The model does not know this text${estimate}: do not rely on the output.${reads}${why(rivals)}`;
  }
  if (!finished) return "The output was cut: raise “Longest output” in the settings.";
  if (estimated && (doubtful || confidence < UNSURE))
    return `The model is unsure of this text (${chrf}).${why(rivals)}`;
  return "";
}

/** The warning for the best output of a run; "" before there is one. */
export function doubtOf({ done, hypotheses: [best, ...others] }, language) {
  if (!done || !best) return "";
  const { tokens, finished, log_prob: logProb } = best;
  const { confidence, signal, doubtful } = done;
  const rivals = others.map(({ text }) => text);
  return warning({ confidence, signal, doubtful, logProb, tokens, finished, rivals }, language);
}

export const nameOf = (code) =>
  new Intl.DisplayNames("en", { type: "language", fallback: "code" }).of(code);

const same = (a, b) => a.length === b.length && a.every((token, i) => token === b[i]);
