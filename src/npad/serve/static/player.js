// Play, pause, step and speed.

const STEPS_PER_SECOND = 5;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Player {
  /**
   * @param {{start, back, play, forward, slider, speed, position}} controls elements of the page
   * @param {(step: number, chosen: boolean) => void} onStep called with every step to show, and
   *   whether it is the user's choice or the end of what was played
   */
  constructor(controls, onStep) {
    this.controls = controls;
    this.onStep = onStep;
    this.at = -1;
    this.length = 0;
    this.timer = null;
    this.follows = true; // plays steps as they come, until the user takes over
    const { start, back, play, forward, slider, speed } = controls;
    start.addEventListener("click", () => this.#stop(0));
    back.addEventListener("click", () => this.#stop(this.at - 1));
    forward.addEventListener("click", () => this.#stop(this.at + 1));
    play.addEventListener("click", () => (this.playing ? this.#stop(this.at) : this.play()));
    slider.addEventListener("input", () => this.#stop(Number(slider.value) - 1));
    speed.addEventListener("change", () => this.playing && this.play());
    this.#render();
  }

  get playing() {
    return this.timer !== null;
  }

  get atEnd() {
    return this.at === this.length - 1;
  }

  reset(follows) {
    this.pause();
    this.follows = follows;
    this.at = -1;
    this.length = 0;
    this.#render();
  }

  /** Say how many steps there are. */
  grow(length) {
    this.length = length;
    if (this.at < 0 && length > 0) this.show(0);
    if (this.follows && !this.playing && !this.atEnd) {
      if (still.matches) this.show(length - 1);
      else this.play();
    }
    this.#render();
  }

  show(step, chosen = false) {
    this.at = Math.max(0, Math.min(this.length - 1, step));
    this.#render();
    this.onStep(this.at, chosen);
  }

  /** Go to the last step. */
  end() {
    this.#stop(this.length - 1);
  }

  play() {
    this.pause();
    if (this.atEnd) this.show(0);
    const speed = Number(this.controls.speed.value);
    this.timer = setInterval(() => this.#tick(), 1000 / (STEPS_PER_SECOND * speed));
    this.#render();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.#render();
  }

  #tick() {
    if (this.atEnd) {
      this.pause();
      this.onStep(this.at, true);
    } else this.show(this.at + 1);
  }

  #stop(step) {
    this.pause();
    this.follows = false;
    if (this.length) this.show(step, true);
  }

  #render() {
    const { start, back, play, forward, slider, position } = this.controls;
    slider.max = Math.max(1, this.length);
    slider.value = this.at + 1;
    slider.setAttribute("aria-valuetext", `step ${this.at + 1} of ${this.length}`);
    position.textContent = this.length ? `step ${this.at + 1} of ${this.length}` : "no steps yet";
    start.disabled = back.disabled = this.at <= 0;
    forward.disabled = this.atEnd;
    play.disabled = slider.disabled = this.length < 2;
    play.textContent = this.playing ? "Pause" : "Play";
  }
}
