// Tokens as people read them: without the marks that tell where a word begins.

const MARKS = ["▁", "Ġ"];
const END = "</s>"; // the end token of a source

const begins = (token) => MARKS.some((mark) => token.startsWith(mark));

export const isMarked = (tokens) => tokens.some(begins);

export function piece(token) {
  if (token === END) return "end";
  return begins(token) ? token.slice(1) : token;
}

/** Group tokens into words: [{text, from, to}]. Unless tokens are marked, each is a word. */
export function words(tokens, marked) {
  const grouped = [];
  tokens.forEach((token, i) => {
    const joined = marked && !begins(token) && grouped.length > 0;
    if (joined) {
      const last = grouped[grouped.length - 1];
      last.text += piece(token);
      last.to = i + 1;
    } else {
      grouped.push({ text: piece(token), from: i, to: i + 1 });
    }
  });
  return grouped;
}

/** Where each word begins in the text of the output. */
export function starts(grouped, text) {
  let end = 0;
  return grouped.map((word) => {
    const start = Math.max(end, text.indexOf(word.text, end));
    end = start + word.text.length;
    return start;
  });
}

export const sentence = (tokens, marked) =>
  words(tokens, marked)
    .map((word) => word.text)
    .join(" ")
    .trim();
