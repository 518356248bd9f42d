"""The report of `npad reproduce` with further sections, claims and plots."""

from __future__ import annotations

from functools import partial
from typing import Any

from npad.evaluate import plots
from npad.evaluate.plots import Curve, Panel, Point
from npad.reproduce import chosen, figures
from npad.reproduce.bench import Bench
from npad.reproduce.chosen import WIDTHS
from npad.reproduce.claims import Check, Verdict, compare
from npad.reproduce.figures import Line
from npad.reproduce.report import Outline, Sections, Setup
from studies.beyond import sections
from studies.beyond.bench import BeyondBench, Noisy
from studies.beyond.sections import WIDE_BEAMS, tempered

EARLY_STEPS = 3  # "the first tokens" of claim (ix)
MIN_ENTROPY_GAP = 0.01  # nats by which early steps must exceed later ones, claim (ix)
MIN_SHARE = 0.05  # of the outputs: steps that fewer outputs reach are left out


class Beyond(Outline):
    """The paper's tables, and experiments beyond them unless the setup is brief.

    Args:
        noisy: returns the model that was trained with noise of a σ₀; None if all is recorded.
    """

    bench = BeyondBench

    def __init__(self, noisy: Noisy | None = None) -> None:
        self.noisy = noisy

    def sections(self, setup: Setup) -> Sections:
        found = super().sections(setup) | ({} if setup.brief else self.further(setup))
        if setup.sigmas:
            found["Noise in training"] = _of(
                sections.noise_in_training, sigmas=setup.sigmas, noisy=self.noisy
            )
        return found

    def further(self, setup: Setup) -> Sections:
        """Return the experiments beyond the paper."""
        sentences, budget = setup.exact
        return {
            "NPAD over diverse decoding": sections.over_diverse,
            "Where the model is unsure": _of(
                lambda bench: (
                    "![entropy by step](entropy.png)\n" if bench.entropy(bench.tests[0]) else ""
                )
            ),
            "Equal compute": sections.equal_compute,
            "Sampling at lower temperatures": sections.sampling,
            "Schedules": sections.schedules,
            "Distributions": sections.distributions,
            "Which candidate to return": sections.selection,
            "Search errors": _of(sections.search_errors, sentences=sentences, budget=budget),
        }

    def claims(self, bench: Bench, setup: Setup) -> dict[str, Check]:
        if setup.brief:
            return {}
        diverse = chosen.diverse(bench, WIDTHS[0])
        return {
            "(ix) the first tokens are the least certain": least_certain,
            "(x) NPAD-10 improves diverse decoding": compare(
                chosen.npad(bench, diverse, 10), diverse
            ),
        }

    def draw(self, bench: Any, setup: Setup, title: str) -> None:
        if setup.brief:
            super().draw(bench, setup, title)
            return
        samples = {"greedy and samples at 0.5": Line("sampling", [(50, tempered(0.5), "50")])}
        figures.draw(bench, bench.folder, title, (*WIDTHS, *WIDE_BEAMS), samples)
        plots.curves([entropy_panel(bench)], bench.folder / "entropy.png", title)


BEYOND = Beyond()


def _of(section: Any, **options: Any) -> Any:
    """Return a section that is asked of a `BeyondBench`."""
    return partial(section, **options)


def least_certain(bench: Any, set_name: str) -> Verdict:
    """Compare the entropy of early steps with that of later ones."""
    entropies = bench.entropy(set_name)
    steps = [(mean, count) for mean, count in entropies if count >= MIN_SHARE * entropies[0][1]]
    early_steps, late_steps = steps[:EARLY_STEPS], steps[EARLY_STEPS:]
    if not late_steps:
        return "not confirmed", "outputs have no more than three tokens"
    early, late = (
        sum(mean * n for mean, n in part) / sum(n for _, n in part)
        for part in (early_steps, late_steps)
    )
    peak = max(range(len(steps)), key=lambda t: steps[t][0]) + 1
    figures = (
        f"entropy of steps 1–3: {early:.2f} nats, of later ones: {late:.2f}; highest at step {peak}"
    )
    confirmed = early > late + MIN_ENTROPY_GAP and peak <= EARLY_STEPS
    return "confirmed" if confirmed else "not confirmed", figures


def entropy_panel(bench: BeyondBench) -> Panel:
    """Return a panel of the entropy of the model's predictions by step."""
    steps = bench.entropy(bench.tests[0])
    points = [
        Point(t + 1.0, mean)
        for t, (mean, count) in enumerate(steps)
        if count >= MIN_SHARE * steps[0][1]
    ]
    curves = {"mean along greedy outputs": Curve("greedy", points)}
    return Panel("step", "entropy of the prediction, nats", curves, min_span=0.5)
