// Numbers as people read them.

const minus = (text) => text.replace("-", "−");

export function logProb(value) {
  if (value === null) return "–";
  return value === -Infinity ? "−∞" : minus(value.toFixed(3));
}

export const whole = (value) => value.toLocaleString("en");

export const seconds = (value) =>
  value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;

/** A probability: 0.134, or 2.1·10⁻⁵ where that would read 0.000. */
export function probability(logarithm) {
  const p = Math.exp(logarithm);
  if (p >= 0.0005 || p === 0) return p.toFixed(3);
  const exponent = Math.floor(Math.log10(p));
  const raised = [...String(-exponent)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");
  return `${(p / 10 ** exponent).toFixed(1)}·10⁻${raised}`;
}

export const count = (n, noun, plural = `${noun}s`) => `${whole(n)} ${n === 1 ? noun : plural}`;
