// A text as the parts that are decoded one by one: its lines, and the sentences of each.

// What ends with a full stop that ends no sentence; a single letter may be an initial.
const ABBREVIATION =
  /(?:^|[\s(])(?:Mr|Mrs|Ms|Dr|Prof|St|Nr|No|Fig|vs|etc|approx|e\.g|i\.e|ca|bzw|usw|\p{L})\.\s*$/u;

// Browsers of before 2024 may have none: then each line is a part.
const segmenter = Intl.Segmenter && new Intl.Segmenter("en", { granularity: "sentence" });

/**
 * Split a text into parts.
 *
 * @param {string} text
 * @returns {{text: string, after: string}[]} at least one; `after` is what stands between a part
 *   and the next, so that the parts with it are the text, but for spaces at the ends of lines
 */
export function split(text) {
  const parts = [];
  let gap = "";
  for (const line of text.split("\n")) {
    const sentences = sentencesOf(line);
    sentences.forEach((sentence, i) => {
      if (parts.length) parts.at(-1).after = i ? " " : gap;
      parts.push({ text: sentence, after: "" });
    });
    gap = sentences.length ? "\n" : `${gap}\n`;
  }
  return parts.length ? parts : [{ text: text.trim(), after: "" }];
}

function sentencesOf(line) {
  const sentences = [];
  let open = "";
  for (const { segment } of segmenter?.segment(line) ?? [{ segment: line }]) {
    open += segment;
    if (ABBREVIATION.test(open)) continue;
    sentences.push(open.trim());
    open = "";
  }
  return [...sentences, open.trim()].filter(Boolean);
}

/** Join the outputs of parts as the parts were joined. */
export const join = (parts, outputs) =>
  parts.map(({ after }, i) => (outputs[i] ?? "") + after).join("");
