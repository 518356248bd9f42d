"""What a reader of a figure must find in it: the colours, the words and the spans of its axes."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from npad.cli.plot import loss_title
from npad.evaluate import plots
from npad.evaluate.plots import COLOURS, LABEL_DISTANCE, Curve, Panel, Point, label_offsets
from npad.reproduce import report
from npad.training.prepare import TextData
from npad.training.recipe import Recipe
from npad.training.run import TrainingPlan
from runs import ROOT
from studies.beyond.outline import BEYOND

RESULTS = ROOT / "docs/results/multi30k-adam"


def keep_figures(patch):
    """The figures that are drawn from now on, by file name; nothing is written."""
    figures = {}
    keep = lambda figure, path: figures.update({path.name: figure})  # noqa: E731
    patch.setattr(plots, "save_figure", keep)
    return figures


@pytest.fixture
def drawn(monkeypatch):
    return keep_figures(monkeypatch)


@pytest.fixture(scope="module")
def redrawn(tmp_path_factory):
    """The figures of a committed report."""
    folder = tmp_path_factory.mktemp("report")
    for name in ("setup.json", "results.jsonl"):
        shutil.copy(RESULTS / name, folder)
    with pytest.MonkeyPatch.context() as patch:
        figures = keep_figures(patch)
        report.redraw(folder, BEYOND)
    return figures


def joined(line) -> bool:
    return line.get_linestyle() not in ("None", "none")


def data_lines(axes):
    """The lines of curves: not error bars' caps, nor horizontal levels."""
    return [line for line in axes.lines if line.get_marker() in tuple(plots.MARKERS)]


def shade_of(colour, strategy) -> bool:
    """Whether a colour is a strategy's, mixed with white."""
    missing = 1 - np.array(to_rgb(colour)), 1 - np.array(to_rgb(COLOURS[strategy]))
    ratios = missing[0] / missing[1]
    return bool(np.ptp(ratios) < 0.02 and 0.3 < ratios.mean() < 1.01)


def test_a_figure_names_model_data_error_bars_and_what_is_better(redrawn):
    assert set(redrawn) == {"sigma.png", "chains.png", "calls.png", "entropy.png"}
    for figure in redrawn.values():
        title = figure.get_suptitle()
        assert "Multi30k, English to Czech, Adam: model/best-2150" in title
        assert "1,000 sentences of test2016" in title
        if figure is not redrawn["entropy.png"]:
            assert "standard deviation over 3 seeds" in title
            labels = [axes.get_ylabel() for axes in figure.axes]
            assert labels == ["NLL (lower is better)", "BLEU (higher is better)"]


def test_noise_does_not_fill_an_axis(redrawn):
    for name in ("sigma.png", "chains.png", "calls.png"):
        nll, bleu = redrawn[name].axes
        assert np.ptp(nll.get_ylim()) >= 0.5 - 1e-9
        assert np.ptp(bleu.get_ylim()) >= 2 - 1e-9
    assert np.ptp(redrawn["calls.png"].axes[1].get_ylim()) == pytest.approx(2)  # of 0.6 measured


def test_two_points_are_not_joined(redrawn):
    lengths = set()
    for figure in redrawn.values():
        for axes in figure.axes:
            for line in data_lines(axes):
                lengths.add(len(line.get_xdata()))
                assert joined(line) == (len(line.get_xdata()) >= 3)
    assert {1, 2, 3} <= lengths


def test_points_are_labelled_with_chains_or_width(redrawn):
    figure = redrawn["calls.png"]
    for axes in figure.axes:
        labels = sorted(text.get_text() for text in axes.texts)
        widths, chains, samples = ["5", "10", "25", "50", "100"], ["5", "10", "50"], ["50"]
        assert labels == sorted([*widths, *chains, *2 * ["5", "10"], *samples])
    assert "chains of NPAD" in figure.get_suptitle()
    assert "width of a beam" in figure.get_suptitle()


def test_a_strategy_has_one_colour_in_every_figure(redrawn):
    seen = set()
    for figure in redrawn.values():
        (legend,) = figure.legends
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            line = handle[0] if isinstance(handle, tuple) else handle
            colour = line.get_color() if hasattr(line, "get_color") else line[0].get_color()
            strategy = strategy_of(text.get_text())
            assert shade_of(to_hex(colour), strategy), text.get_text()
            seen.add(strategy)
    assert seen == {"greedy", "beam", "sampling", "NPAD", "NPAD over beam"}


def strategy_of(name: str) -> str:
    if name.startswith("NPAD"):
        return "NPAD over beam" if "beam" in name else "NPAD"
    if "sampl" in name:
        return "sampling"
    return "beam" if name.startswith("beam") else "greedy"


def test_the_legend_has_the_curves_of_every_panel_and_stays_within_the_figure(drawn, tmp_path):
    curve = Curve("beam", [Point(1, 1), Point(2, 2), Point(3, 3)])
    long = {f"{'a decoder with a long name ' * 2}{i}": curve for i in range(7)}
    other = Panel("x", "y", {"greedy": Curve("greedy", [Point(1, 1)])})
    plots.curves([Panel("x", "y", long), other], tmp_path / "f.png")
    figure = drawn["f.png"]
    (legend,) = figure.legends
    assert legend.get_window_extent().width <= figure.bbox.width
    assert len(legend.get_texts()) == 8


def test_losses_have_a_title_and_no_line_through_two_points(drawn, tmp_path):
    records = [{"update": 1, "valid_perplexity": 9.0}, {"update": 2, "valid_perplexity": 8.9}]
    plots.losses(records, tmp_path / "l.png", "Training of run on store")
    (axes,) = drawn["l.png"].axes
    assert axes.get_title() == "Training of run on store"
    assert "lower is better" in axes.get_ylabel()
    assert not any(map(joined, axes.lines))
    low, high = axes.get_ylim()
    assert high / low == pytest.approx(plots.MIN_PERPLEXITY_RATIO)


def test_labels_keep_away_from_lines_and_from_each_other():
    anchors = np.array([(0.0, 0.0), (0.0, 1.0)])
    across = np.array([(-100.0, 0.0), (0.0, 0.0), (100.0, 0.0)])
    first, second = label_offsets(anchors, [across, anchors[1:]])
    assert all(math.hypot(*offset) == pytest.approx(LABEL_DISTANCE) for offset in (first, second))
    assert abs(first[1]) > 5
    assert math.dist(first, (second[0], second[1] + 1)) > LABEL_DISTANCE / 2


def test_the_title_of_a_loss_names_the_run_and_its_data(tmp_path):
    assert loss_title(tmp_path / "run") == "Training of run"
    for data in ("/a/store", TextData(("/a/store", "/a/b"))):
        (tmp_path / "run").mkdir(exist_ok=True)
        TrainingPlan(data, {}, Recipe()).save(tmp_path / "run")
        assert loss_title(tmp_path / "run") == "Training of run on store"
