"""The report's pictures: NLL and BLEU against the noise, the chains and the work, and entropy by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from npad.evaluate import plots
from npad.evaluate.plots import Panel
from npad.experiments import chosen
from npad.experiments.bench import Bench, Figures
from npad.experiments.beyond import WIDEST, tempered
from npad.experiments.chosen import BEAM_CHAINS, CHAINS, SIGMAS, WIDTHS
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling

Series = dict[str, list[tuple[float, Decoder]]]
SHORT = 0.05  # of the outputs: steps that fewer reach are not shown


def draw(bench: Bench, folder: Path, brief: bool) -> None:
    """Draw them all into a folder, of the first test set."""
    where = bench.tests[0]
    sigma: Series = {
        f"NPAD-{m}": [(s, NPAD(Greedy(), m, Noise(s))) for s in SIGMAS] for m in CHAINS
    }
    chains: Series = {f"σ₀ {s}": [(m, NPAD(Greedy(), m, Noise(s))) for m in CHAINS] for s in SIGMAS}
    level: Series = {"greedy": [(0, Greedy())], "beam 5": [(0, Beam(5))]}
    _both(bench, where, sigma | level, "σ₀", folder / "sigma.png")
    sampled: Series = {"sampling": [(float(m), Sampling(m)) for m in CHAINS]}
    _both(
        bench, where, chains | sampled | level, "chains or samples", folder / "chains.png", log=True
    )
    _both(
        bench,
        where,
        _work(bench, brief),
        "model calls a sentence, re-scoring included",
        folder / "calls.png",
        work,
    )
    if brief:
        return
    steps = bench.entropy(where)
    shown = [
        (t + 1.0, mean, 0.0)
        for t, (mean, count) in enumerate(steps)
        if count >= SHORT * steps[0][1]
    ]
    panel = Panel(
        "step", "entropy of the prediction, nats", {f"{where}, along greedy outputs": shown}
    )
    plots.curves([panel], folder / "entropy.png")


def _work(bench: Bench, brief: bool) -> Series:
    beams = WIDTHS if brief else (*WIDTHS, *WIDEST)
    over = {
        f"NPAD + beam {k}": [(m, chosen.npad(bench, Beam(k), m)) for m in BEAM_CHAINS]
        for k in WIDTHS
    }
    found: Series = {
        "NPAD + greedy": [(1, Greedy()), *((m, chosen.npad_greedy(bench, m)) for m in CHAINS)],
        **{name: list(points) for name, points in over.items()},
        "beam": [(1, Greedy()), *((k, Beam(k)) for k in beams)],
    }
    if not brief:
        found["greedy and samples at 0.5"] = [(1, Greedy()), (50, tempered(0.5))]
    return found


def work(figures: Figures) -> float:
    """Model calls per sentence, re-scoring included."""
    return figures.each("calls") + figures.each("rescored")


def _both(
    bench: Bench,
    where: str,
    series: Series,
    x: str,
    path: Path,
    place: Callable[[Figures], float] | None = None,
    log: bool = False,
) -> None:
    """NLL and BLEU side by side; `place` finds a point's x from its figures."""
    panels = []
    for name, shown in (("nll", "NLL"), ("bleu", "BLEU")):
        points = {}
        for line, decoders in series.items():
            each = [(at, bench.figures(where, decoder)) for at, decoder in decoders]
            points[line] = [
                (place(one) if place else at, one[name], one.spread(name)) for at, one in each
            ]
        panels.append(Panel(x, f"{shown}, {where}", points, log or place is not None))
    plots.curves(panels, path)
