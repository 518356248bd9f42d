// Places that glide to where they belong; at once for those who prefer less motion.

const MILLISECONDS = 220;
const MOST = 1000; // places; more would stutter
const still = matchMedia("(prefers-reduced-motion: reduce)");
const ease = (share) => 1 - (1 - share) ** 3;

export class Motion {
  constructor(draw) {
    this.draw = draw;
    this.clear();
  }

  clear() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.places = new Map(); // node -> {from, to, y, thick}
  }

  /** Whether everything is where it belongs. */
  get settled() {
    return this.frame === null;
  }

  to(target) {
    const before = new Map(
      [...target.keys()].map((node) => [node, this.places.get(node) ?? this.#birthplace(node)]),
    );
    cancelAnimationFrame(this.frame);
    const moves = [...target].some(([node, place]) => !same(before.get(node), place));
    if (still.matches || !moves || target.size > MOST) {
      this.#arrive(target);
      return;
    }
    const start = performance.now();
    const advance = (now) => {
      const share = ease(Math.min(1, Math.max(0, (now - start) / MILLISECONDS)));
      if (share === 1) {
        this.#arrive(target);
        return;
      }
      this.places = new Map(
        [...target].map(([node, place]) => [
          node,
          between(before.get(node) ?? place, place, share),
        ]),
      );
      this.draw();
      this.frame = requestAnimationFrame(advance);
    };
    advance(start);
  }

  #arrive(target) {
    this.frame = null;
    this.places = target;
    this.draw();
  }

  /** New branches grow from where the nearest known prefix ends. */
  #birthplace(node) {
    let parent = node.parent;
    while (parent && !this.places.has(parent)) parent = parent.parent;
    if (!parent) return null;
    const { to, y, thick } = this.places.get(parent);
    return { from: to, to, y, thick };
  }
}

function between(a, b, share) {
  const mix = (name) => a[name] + (b[name] - a[name]) * share;
  return { from: mix("from"), to: mix("to"), y: mix("y"), thick: mix("thick") };
}

const same = (a, b) =>
  a && a.from === b.from && a.to === b.to && a.y === b.y && a.thick === b.thick;
