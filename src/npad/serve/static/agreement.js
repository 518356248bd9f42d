// How many chains agree with each word of an output.

/**
 * The share of chains whose output has each word, in the same order.
 *
 * @param {string[]} chosen the words of the output
 * @param {string[][]} outputs the words of every chain's output
 * @returns {number[]} between 0 and 1, one per word of `chosen`
 */
export function agreement(chosen, outputs) {
  const votes = chosen.map(() => 0);
  for (const output of outputs) {
    for (const i of commonSubsequence(chosen, output)) votes[i] += 1;
  }
  return votes.map((n) => n / Math.max(1, outputs.length));
}

/** The positions in `a` of a longest common subsequence of two lists. */
export function commonSubsequence(a, b) {
  const longest = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i][j] =
        a[i] === b[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  const positions = [];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) {
      positions.push(i);
      i += 1;
      j += 1;
    } else if (longest[i + 1][j] >= longest[i][j + 1]) i += 1;
    else j += 1;
  }
  return positions;
}
