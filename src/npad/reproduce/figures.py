"""Plots of a report: NLL and BLEU against noise, chains and model calls, and entropy by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from npad.evaluate import plots
from npad.evaluate.plots import Curve, Panel, Point
from npad.noise.noisy import Noise
from npad.reproduce import chosen
from npad.reproduce.bench import Bench, Figures
from npad.reproduce.beyond import WIDE_BEAMS, tempered
from npad.reproduce.chosen import BEAM_CHAINS, CHAINS, SIGMAS, WIDTHS
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling

MIN_SHARE = 0.05  # of the outputs: later steps, which fewer outputs reach, are not plotted
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


def draw(bench: Bench, folder: Path, brief: bool, title: str = "") -> None:
    """Draw all plots of the first test set.

    Args:
        bench: measures the decoders.
        folder: where the PNG files are written.
        brief: leave out what goes beyond the paper's tables.
        title: the model and the data, above each plot.
    """
    figure = Figure(bench, bench.tests[0], title)
    by_sigma: Lines = {
        f"NPAD-{m}": Line(
            "NPAD", [(sigma, NPAD(Greedy(), m, Noise(sigma)), "") for sigma in SIGMAS], shade
        )
        for m, shade in zip(CHAINS, SHADES[1:], strict=True)
    }
    by_chains: Lines = {
        f"NPAD, σ₀ {sigma}": Line(
            "NPAD", [(m, NPAD(Greedy(), m, Noise(sigma)), "") for m in CHAINS], shade
        )
        for sigma, shade in zip(SIGMAS, SHADES, strict=True)
    }
    by_chains["sampling"] = Line("sampling", [(m, Sampling(m), "") for m in CHAINS])
    figure.draw(folder / "sigma.png", by_sigma, "σ₀", LEVELS)
    figure.draw(folder / "chains.png", by_chains, "chains or samples", LEVELS, log=True)
    figure.draw(
        folder / "calls.png",
        _by_model_calls(bench, brief),
        f"model calls a {bench.measures.unit}, re-scoring included",
        x_of=model_calls,
        log=True,
    )
    if not brief:
        figure.draw_entropy(folder / "entropy.png")


def _by_model_calls(bench: Bench, brief: bool) -> Lines:
    widths = WIDTHS if brief else (*WIDTHS, *WIDE_BEAMS)
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
    if not brief:
        samples = tempered(0.5)
        lines["greedy and samples at 0.5"] = Line("sampling", [(50, samples, "50")])
    lines["greedy"] = Line("greedy", [greedy])
    return lines


def model_calls(figures: Figures) -> float:
    """Return the model calls per sentence, re-scoring included."""
    return figures.per_sentence("calls") + figures.per_sentence("rescored")


@dataclass(frozen=True)
class Figure:
    """Draws measured decoders of one test set."""

    bench: Bench
    set_name: str
    title: str

    @property
    def bars(self) -> str:
        """What the error bars are, in words; empty if there are none."""
        seeds = self.bench.seeds
        return f"Error bars: standard deviation over {seeds} seeds." if seeds > 1 else ""

    def draw(
        self,
        path: Path,
        lines: Lines,
        x_label: str,
        levels: Lines | None = None,
        x_of: Callable[[Figures], float] | None = None,
        log: bool = False,
    ) -> None:
        """Draw NLL and the metrics side by side; `x_of` computes x in place of a line's x."""
        panels = [
            Panel(
                x_label,
                label,
                {line_name: self._curve(line, name, x_of) for line_name, line in lines.items()},
                {line_name: self._curve(line, name) for line_name, line in (levels or {}).items()},
                log,
                span,
            )
            for name, label, span in self._axes()
        ]
        labelled = any(label for line in lines.values() for _, _, label in line.decoders)
        note = " ".join(text for text in (self.bars, LABELS if labelled else "") if text)
        plots.curves(panels, path, self.title, note)

    def _axes(self) -> list[tuple[str, str, float]]:
        """Return the figures to draw: name, label of the axis, and its least span."""
        axes = [("nll", "NLL (lower is better)", NLL_SPAN)]
        for metric in self.bench.measures.metrics:
            better = "lower" if metric.lower_is_better else "higher"
            axes.append((metric.name, f"{metric.title} ({better} is better)", metric.min_span))
        return axes

    def _curve(
        self, line: Line, name: str, x_of: Callable[[Figures], float] | None = None
    ) -> Curve:
        points = []
        for x, decoder, label in line.decoders:
            figures = self.bench.figures(self.set_name, decoder)
            x = x_of(figures) if x_of else x
            points.append(Point(x, figures[name], figures.spread(name), label))
        return Curve(line.strategy, points, line.shade)

    def draw_entropy(self, path: Path) -> None:
        """Draw the entropy of the model's predictions by step."""
        steps = self.bench.entropy(self.set_name)
        points = [
            Point(t + 1.0, mean)
            for t, (mean, count) in enumerate(steps)
            if count >= MIN_SHARE * steps[0][1]
        ]
        panel = Panel(
            "step",
            "entropy of the prediction, nats",
            {"mean along greedy outputs": Curve("greedy", points)},
            min_span=0.5,
        )
        plots.curves([panel], path, self.title)
