// The noisy score of every chain against its clean score.

import { svg, table } from "./dom.js";
import { logProb } from "./format.js";
import { axes, box, linear, ticks } from "./scale.js";
import { term } from "./tips.js";

const HEIGHT = 340;

/** Draw the chains, and write them as a table; of decoders without noise there is no section. */
export function showScatter({ section, picture, numbers, note }, run) {
  const chains = [...run.chains.values()].filter(
    (chain) => Number.isFinite(chain.noisy_log_prob) && Number.isFinite(chain.log_prob),
  );
  picture.replaceChildren();
  numbers.replaceChildren();
  const drawn = chains.length > 1;
  section.hidden = !drawn;
  if (!drawn) return;
  note.replaceChildren(...summary(chains, run.chains.size));
  const values = chains.flatMap((chain) => [chain.noisy_log_prob, chain.log_prob]);
  const low = Math.min(...values);
  const domain = [low - 0.04 * Math.abs(low), 0];
  const frame = box(picture, HEIGHT, 16);
  const x = linear(domain, [frame.left, frame.right]);
  const y = linear(domain, [frame.bottom, frame.top]);
  const marks = ticks(domain);
  picture.append(
    axes(
      frame,
      { scale: x, values: marks, name: "log p under noise", label: short },
      { scale: y, values: marks, name: "clean log p", label: short },
    ),
    svg("line", { class: "diagonal", x1: x(domain[0]), y1: y(domain[0]), x2: x(0), y2: y(0) }),
    ...points(chains, run, x, y),
  );
  const rows = chains
    .sort((a, b) => a.chain - b.chain)
    .map((chain) => [
      String(chain.chain),
      logProb(chain.noisy_log_prob),
      logProb(chain.log_prob),
      chain.text || "(empty)",
    ]);
  numbers.append(
    table("Scores of every chain", ["chain", "noisy log p", "clean log p", "output"], rows),
  );
}

const short = (value) => String(value).replace("-", "−");

function points(chains, run, x, y) {
  const winner = run.winner?.join(" ");
  const ordered = [...chains].sort((a, b) => rank(a) - rank(b) || a.chain - b.chain);
  return ordered.map((chain) =>
    svg(
      "circle",
      {
        class: ["", "winner", "clean"][rank(chain)] || "chain",
        cx: x(chain.noisy_log_prob).toFixed(1),
        cy: y(chain.log_prob).toFixed(1),
        r: rank(chain) ? 6 : 4.5,
      },
      svg(
        "title",
        {},
        `chain ${chain.chain}: noisy ${logProb(chain.noisy_log_prob)}, clean ${logProb(chain.log_prob)} — ${chain.text}`,
      ),
    ),
  );

  function rank(chain) {
    if (chain.chain === 0) return 2;
    return chain.tokens.join(" ") === winner ? 1 : 0;
  }
}

function summary(chains, all) {
  const fooled = chains.filter((chain) => chain.noisy_log_prob > chain.log_prob + 1e-3).length;
  const missing = all - chains.length;
  const impossible = missing ? ` ${missing} more are impossible to the clean model.` : "";
  return [
    `Below the diagonal, noise made an output look better than it is: ${fooled} of ${all} chains.${impossible} Only the `,
    term("clean"),
    " score decides.",
  ];
}
