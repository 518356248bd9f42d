// The toy model: its phrases, and of one the probability of each next word, by the words so far. A
// history that is not listed ends.

export const PHRASES = ["ich verstehe nur bahnhof", "das ist mir wurst", "na ja", "danke"];

export const PHRASE = "ich verstehe nur bahnhof";

export const TABLE = {
  "": { i: 0.44, me: 0.16, we: 0.15, it: 0.14, only: 0.11 },
  i: { understand: 0.52, get: 0.26, see: 0.22 },
  "i understand": { only: 0.6, nothing: 0.25, the: 0.15 },
  "i understand only": { station: 0.4, trains: 0.32, the: 0.28 },
  "i understand only the": { station: 0.7, trains: 0.3 },
  "i understand the": { station: 0.6, trains: 0.4 },
  "i get": { nothing: 0.55, it: 0.45 },
  "i see": { nothing: 0.5, the: 0.5 },
  "i see the": { station: 0.6, trains: 0.4 },
  me: { understand: 0.5, see: 0.5 },
  "me understand": { only: 0.5, trains: 0.5 },
  we: { understand: 0.6, see: 0.4 },
  "we understand": { only: 0.55, nothing: 0.45 },
  "we see": { trains: 0.5, nothing: 0.5 },
  it: { is: 1 },
  "it is": { all: 0.98, nothing: 0.02 },
  "it is all": { greek: 0.98, trains: 0.02 },
  "it is all greek": { to: 1 },
  "it is all greek to": { me: 1 },
  only: { station: 0.5, trains: 0.5 },
};

/** Every output of the phrase with its probability, most probable first. */
export function outputs(history = "", reached = 1) {
  const next = TABLE[history];
  if (!next) return [{ text: history, probability: reached }];
  return Object.entries(next)
    .flatMap(([word, p]) => outputs(history ? `${history} ${word}` : word, reached * p))
    .sort((a, b) => b.probability - a.probability);
}
