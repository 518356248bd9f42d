// The options of each decoder, by the names that the server and the command line use.

// What the page shows of these decoders; the options of others are learned from the server.
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

/** Learn the options of the decoders that are not listed above; return all names of options. */
export function learn(models) {
  for (const { options } of models) {
    for (const [decoder, names] of Object.entries(options ?? {})) BY_DECODER[decoder] ??= names;
  }
  return [...new Set(Object.values(BY_DECODER).flat())];
}

/** The names of the options that a choice of decoder, and of its inner one, has. */
export function offered(decoder, inner = "greedy") {
  const own = BY_DECODER[decoder] ?? [];
  const within = own.includes("inner") ? (BY_INNER[inner] ?? BY_DECODER[inner] ?? []) : [];
  return [...new Set([...own, ...within, ...COMMON])];
}

/** The options that go with the decoder, and no others: the server refuses those. */
export function applicable(decoder, options) {
  const names = BY_DECODER[decoder] ? offered(decoder, options.inner) : Object.keys(options);
  return Object.fromEntries(
    names.filter((name) => given(options[name])).map((name) => [name, options[name]]),
  );
}

export const given = (value) => value !== undefined && value !== null && value !== "";
