"""Plots of a report: NLL and BLEU against noise, chains and model calls, and entropy by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from npad.evaluate import plots
from npad.evaluate.plots import Panel
from npad.experiments import chosen
from npad.experiments.bench import Bench, Figures
from npad.experiments.beyond import WIDE_BEAMS, tempered
from npad.experiments.chosen import BEAM_CHAINS, CHAINS, SIGMAS, WIDTHS
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling

Series = dict[str, list[tuple[float, Decoder]]]  # by name: x coordinate and decoder of each point
MIN_SHARE = 0.05  # of the outputs: later steps, which fewer outputs reach, are not plotted


def draw(bench: Bench, folder: Path, brief: bool) -> None:
    """Draw all plots of the first test set.

    Args:
        bench: measures the decoders.
        folder: where the PNG files are written.
        brief: leave out what goes beyond the paper's tables.
    """
    set_name = bench.tests[0]
    by_sigma: Series = {
        f"NPAD-{m}": [(sigma, NPAD(Greedy(), m, Noise(sigma))) for sigma in SIGMAS] for m in CHAINS
    }
    by_chains: Series = {
        f"σ₀ {sigma}": [(m, NPAD(Greedy(), m, Noise(sigma))) for m in CHAINS] for sigma in SIGMAS
    }
    levels: Series = {"greedy": [(0, Greedy())], "beam 5": [(0, Beam(5))]}
    sampled: Series = {"sampling": [(float(m), Sampling(m)) for m in CHAINS]}
    _draw_nll_and_bleu(bench, set_name, by_sigma | levels, "σ₀", folder / "sigma.png")
    _draw_nll_and_bleu(
        bench,
        set_name,
        by_chains | sampled | levels,
        "chains or samples",
        folder / "chains.png",
        log=True,
    )
    _draw_nll_and_bleu(
        bench,
        set_name,
        _by_model_calls(bench, brief),
        "model calls a sentence, re-scoring included",
        folder / "calls.png",
        model_calls,
        log=True,
    )
    if brief:
        return
    steps = bench.entropy(set_name)
    points = [
        (t + 1.0, mean, 0.0)
        for t, (mean, count) in enumerate(steps)
        if count >= MIN_SHARE * steps[0][1]
    ]
    panel = Panel(
        "step", "entropy of the prediction, nats", {f"{set_name}, along greedy outputs": points}
    )
    plots.curves([panel], folder / "entropy.png")


def _by_model_calls(bench: Bench, brief: bool) -> Series:
    widths = WIDTHS if brief else (*WIDTHS, *WIDE_BEAMS)
    series: Series = {
        "NPAD + greedy": [(1, Greedy()), *((m, chosen.npad_greedy(bench, m)) for m in CHAINS)],
        **{
            f"NPAD + beam {k}": [(m, chosen.npad(bench, Beam(k), m)) for m in BEAM_CHAINS]
            for k in WIDTHS
        },
        "beam": [(1, Greedy()), *((k, Beam(k)) for k in widths)],
    }
    if not brief:
        series["greedy and samples at 0.5"] = [(1, Greedy()), (50, tempered(0.5))]
    return series


def model_calls(figures: Figures) -> float:
    """Return the model calls per sentence, re-scoring included."""
    return figures.per_sentence("calls") + figures.per_sentence("rescored")


def _draw_nll_and_bleu(
    bench: Bench,
    set_name: str,
    series: Series,
    x_label: str,
    path: Path,
    x_of: Callable[[Figures], float] | None = None,
    log: bool = False,
) -> None:
    """Draw NLL and BLEU side by side; `x_of` computes x from figures in place of the series' x."""
    panels = []
    for name, title in (("nll", "NLL"), ("bleu", "BLEU")):
        points = {}
        for line, decoders in series.items():
            measured = [(x, bench.figures(set_name, decoder)) for x, decoder in decoders]
            points[line] = [
                (x_of(figures) if x_of else x, figures[name], figures.spread(name))
                for x, figures in measured
            ]
        panels.append(Panel(x_label, f"{title}, {set_name}", points, log))
    plots.curves(panels, path)
