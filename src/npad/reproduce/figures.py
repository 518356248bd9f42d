"""Plots of a report: NLL and BLEU against noise, chains and model calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from npad.evaluate import plots
from npad.evaluate.plots import Curve, Panel, Point
from npad.noise.noisy import Noise
from npad.reproduce import chosen
from npad.reproduce.bench import Bench, Figures
from npad.reproduce.chosen import BEAM_CHAINS, CHAINS, SIGMAS, WIDTHS
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling

SHADES = (0.4, 0.6, 0.8, 1.0)  # of the curves of one strategy, by its hyper-parameter
LABELS = "Numbers at points: chains of NPAD, samples, or the width of a beam."

NLL_SPAN = 0.5  # least span of the axis of NLL, as `Metric.min_span`


@dataclass(frozen=True)
class Line:
    """The decoders of one curve."""

    strategy: str  # a name in plots.COLOURS
    decoders: Sequence[tuple[float, Decoder, str]]  # x coordinate, decoder and label of each point
    shade: float = 1.0  # as in plots.Curve


Lines = dict[str, Line]  # by name in the legend
LEVELS: Lines = {
    "greedy": Line("greedy", [(0, Greedy(), "")]),
    "beam 5": Line("beam", [(0, Beam(5), "")]),
}


def draw(
    bench: Bench,
    folder: Path,
    title: str = "",
    widths: Sequence[int] = WIDTHS,
    further: Lines | None = None,
) -> None:
    """Draw all plots of the first test set.

    Args:
        bench: measures the decoders.
        folder: where the PNG files are written.
        title: the model and the data, above each plot.
        widths: of the beams, against model calls.
        further: lines against model calls.
    """
    by_sigma: Lines = {
        f"NPAD-{m}": Line("NPAD", [(s, NPAD(Greedy(), m, Noise(s)), "") for s in SIGMAS], shade)
        for m, shade in zip(CHAINS, SHADES[1:], strict=True)
    }
    by_chains: Lines = {
        f"NPAD, σ₀ {s}": Line("NPAD", [(m, NPAD(Greedy(), m, Noise(s)), "") for m in CHAINS], shade)
        for s, shade in zip(SIGMAS, SHADES, strict=True)
    }
    by_chains["sampling"] = Line("sampling", [(m, Sampling(m), "") for m in CHAINS])
    by_calls = _by_model_calls(bench, widths, further or {})
    calls = f"model calls a {bench.measures.unit}, re-scoring included"
    figures = {
        "sigma": _panels(bench, by_sigma, "σ₀", LEVELS),
        "chains": _panels(bench, by_chains, "chains or samples", LEVELS, log=True),
        "calls": _panels(bench, by_calls, calls, x_of=model_calls, log=True),
    }
    seeds = bench.seeds
    bars = f"Error bars: standard deviation over {seeds} seeds." if seeds > 1 else ""
    for name, panels in figures.items():
        note = f"{bars} {LABELS}".strip() if name == "calls" else bars
        plots.curves(panels, folder / f"{name}.png", title, note)


def _by_model_calls(bench: Bench, widths: Sequence[int], further: Lines) -> Lines:
    greedy = (1, Greedy(), "")
    lines: Lines = {
        "beam": Line("beam", [greedy, *((k, Beam(k), f"{k}") for k in widths)]),
        "NPAD + greedy": Line(
            "NPAD", [greedy, *((m, chosen.npad_greedy(bench, m), f"{m}") for m in CHAINS)]
        ),
    }
    for k, shade in zip(WIDTHS, SHADES[1::2], strict=True):
        decoders = [(m, chosen.npad(bench, Beam(k), m), f"{m}") for m in BEAM_CHAINS]
        lines[f"NPAD + beam {k}"] = Line("NPAD over beam", decoders, shade)
    return lines | further | {"greedy": Line("greedy", [greedy])}


def model_calls(figures: Figures) -> float:
    """Return the model calls per sentence, re-scoring included."""
    return figures.per_sentence("calls") + figures.per_sentence("rescored")


def _panels(
    bench: Bench,
    lines: Lines,
    x_label: str,
    levels: Lines | None = None,
    x_of: Callable[[Figures], float] | None = None,
    log: bool = False,
) -> list[Panel]:
    """Return panels of NLL and of each metric; `x_of` computes x in place of a line's x."""

    def curve(line: Line, name: str, level: bool = False) -> Curve:
        points = []
        for x, decoder, label in line.decoders:
            figures = bench.figures(bench.tests[0], decoder)
            x = x_of(figures) if x_of and not level else x
            points.append(Point(x, figures[name], figures.spread(name), label))
        return Curve(line.strategy, points, line.shade)

    axes = [("nll", "NLL (lower is better)", NLL_SPAN)]
    for metric in bench.measures.metrics:
        better = "lower" if metric.lower_is_better else "higher"
        axes.append((metric.name, f"{metric.title} ({better} is better)", metric.min_span))
    return [
        Panel(
            x_label,
            label,
            {line_name: curve(line, name) for line_name, line in lines.items()},
            {line_name: curve(line, name, True) for line_name, line in (levels or {}).items()},
            log,
            span,
        )
        for name, label, span in axes
    ]
