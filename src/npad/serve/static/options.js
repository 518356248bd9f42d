// The options of each decoder, by the names that the server and the command line use.

const BY_DECODER = {
  greedy: [],
  beam: ["width", "selector"],
  sampling: ["samples", "temperature", "seed", "selector"],
  diverse: ["width", "eta", "selector"],
  npad: [
    "chains",
    "sigma",
    "schedule",
    "distribution",
    "site",
    "relative",
    "inner",
    "seed",
    "selector",
  ],
  exact: ["budget"],
};
const BY_INNER = {
  greedy: [],
  beam: ["width"],
  sampling: ["temperature"],
  diverse: ["width", "eta"],
};
const COMMON = ["max_length"];

export const ALL = [
  ...new Set([...Object.values(BY_DECODER), ...Object.values(BY_INNER), COMMON].flat()),
];

/** The names of the options that a choice of decoder, and of NPAD's inner one, has. */
export function offered(decoder, inner = "greedy") {
  const own = BY_DECODER[decoder] ?? [];
  const within = decoder === "npad" ? (BY_INNER[inner] ?? []) : [];
  return [...own, ...within, ...COMMON];
}

/** The options that go with the decoder, and no others: the server refuses those. */
export function applicable(decoder, options) {
  const names = offered(decoder, options.inner);
  return Object.fromEntries(
    names.filter((name) => given(options[name])).map((name) => [name, options[name]]),
  );
}

export const given = (value) => value !== undefined && value !== null && value !== "";
