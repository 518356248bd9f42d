"""Plots. The only module that imports matplotlib, which is an extra."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npad.errors import InvalidInput, StorageError, missing_library

# The colour of each strategy, the same in every figure.
COLOURS = {
    "greedy": "#5b6770",
    "sampling": "#b08900",
    "beam": "#8a5a9e",
    "diverse": "#2a9d8f",
    "NPAD": "#1f4e79",  # over greedy search
    "NPAD over beam": "#c8553d",
    "steered": "#5a8f29",
    "frontier": "#c9ced3",
    "training": "#9db4c8",
    "validation": "#1f4e79",
}
MARKERS = "oD^svPX"  # of the first, second, … curve of a strategy
MIN_LINE_POINTS = 3  # a line through two points would show a trend that nobody measured
MAX_TICKS = 8  # of a logarithmic axis, one per point; with more points they are 1, 2, 5, 10, …
POINTS_PER_INCH = 72
LABEL_DISTANCE = 13.0  # of a label's centre from its point
DIRECTIONS = [math.radians(degrees) for degrees in (45, 135, -45, -135, 90, -90, 0, 180)]
SAMPLES = 40  # points of a line segment that labels keep away from
MIN_PERPLEXITY_RATIO = 1.5  # of the largest to the smallest perplexity on an axis


def attention(
    weights: Sequence[Sequence[float]],
    source: Sequence[str],
    target: Sequence[str],
    path: Path,
    title: str = "",
) -> None:
    """Draw attention weights as a heat map.

    Args:
        weights: [target, source], one row per output token.
        source: source tokens.
        target: output tokens.
        path: the image file; its suffix is the format.
        title: the model, above the plot.

    Raises:
        InvalidInput: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    size = (1.6 + 0.42 * len(source), 1.6 + 0.36 * len(target))
    figure, axes = new_figure(size)
    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(source)), source, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(target)), target)
    axes.set_xlabel("source")
    axes.set_ylabel("output")
    axes.tick_params(length=0)
    axes.set_title(title, fontsize="medium")
    figure.colorbar(image, ax=axes, label="weight", fraction=0.05, pad=0.02)
    save_figure(figure, path)


def losses(records: Sequence[dict[str, Any]], path: Path, title: str = "") -> None:
    """Draw training and validation perplexity against updates.

    Args:
        records: the entries of a run's log.
        path: the image file; its suffix is the format.
        title: the run, above the plot.

    Raises:
        InvalidInput: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    figure, axes = new_figure((7, 4.2))
    shown = []
    for name, key in (("training", "perplexity"), ("validation", "valid_perplexity")):
        points = [(record["update"], record[key]) for record in records if key in record]
        if not points:
            continue
        shown += [perplexity for _, perplexity in points]
        few = len(points) < MIN_LINE_POINTS
        axes.plot(
            *zip(*points, strict=True),
            color=COLOURS[name],
            linestyle="none" if few else "-",
            linewidth=2 if name == "validation" else 1.2,
            marker="o" if few or name == "validation" else "",
            markersize=4,
            label=name,
        )
        if name == "validation":
            update, lowest = min(points, key=lambda point: point[1])
            axes.annotate(
                f"lowest {lowest:.2f}",
                (update, lowest),
                xytext=(0, 14),
                textcoords="offset points",
                ha="center",
                color=COLOURS[name],
            )
    axes.set_yscale("log")
    if shown and max(shown) < min(shown) * MIN_PERPLEXITY_RATIO:
        centre, factor = (max(shown) * min(shown)) ** 0.5, MIN_PERPLEXITY_RATIO**0.5
        axes.set_ylim(centre / factor, centre * factor)
    axes.set_xlabel("update")
    axes.set_ylabel("perplexity per token (lower is better)")
    axes.set_title(title, fontsize="medium")
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    if shown:
        axes.legend(frameon=False)
    save_figure(figure, path)


@dataclass(frozen=True)
class Point:
    """A measured point."""

    x: float
    y: float
    spread: float = 0.0  # half the length of its error bar; 0: none
    label: str = ""  # beside the point: chains, or width


@dataclass(frozen=True)
class Curve:
    """The points of one strategy; shades tell several curves of it apart."""

    strategy: str  # a name in COLOURS
    points: Sequence[Point]
    shade: float = 1.0  # 1: the strategy's colour; towards 0: white
    joined: bool = True  # by a line, if there are enough points

    @property
    def has_line(self) -> bool:
        """Whether a line joins the points."""
        return self.joined and len(self.points) >= MIN_LINE_POINTS

    @property
    def colour(self) -> tuple[float, float, float]:
        """The strategy's colour, mixed with white."""
        text = COLOURS[self.strategy]
        red, green, blue = (int(text[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return tuple(1 - self.shade * (1 - part) for part in (red, green, blue))  # type: ignore[return-value]


@dataclass(frozen=True)
class Panel:
    """One of several plots side by side."""

    x: str  # label of the x axis
    y: str  # label of the y axis
    curves: Mapping[str, Curve]  # by name in the legend
    levels: Mapping[str, Curve] = field(default_factory=dict)  # one point each: a horizontal line
    log: bool = False  # whether the x axis is logarithmic
    min_span: float = 0.0  # of the y axis, so that noise does not fill it


def curves(panels: Sequence[Panel], path: Path, title: str = "", note: str = "") -> None:
    """Draw panels, three side by side at most, with error bars and a common legend.

    Two points are not joined by a line.

    Args:
        panels: at least one.
        path: the image file; its suffix is the format.
        title: the model and the data, above the panels.
        note: how to read the points, below the title.

    Raises:
        InvalidInput: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    rows = math.ceil(len(panels) / 3)
    columns = math.ceil(len(panels) / rows)
    figure, all_axes = new_figure((5.2 * columns, 4.4 * rows), columns, rows)
    places = all_axes.flatten() if len(panels) > 1 else [all_axes]
    for axes in places[len(panels) :]:
        axes.remove()
    pairs = list(zip(panels, places[: len(panels)], strict=True))
    for panel, axes in pairs:
        _draw_panel(panel, axes)
    if title or note:
        figure.suptitle("\n".join(line for line in (title, note) if line), fontsize="medium")
    legend: dict[str, Any] = {}
    for _, axes in pairs:
        handles, names = axes.get_legend_handles_labels()
        legend |= dict(zip(names, handles, strict=True))
    _add_legend(figure, legend, rows=math.ceil(len(legend) / (3 * columns)))
    figure.draw_without_rendering()  # lays out the axes, which places of labels depend on
    for panel, axes in pairs:
        _label_points(panel, axes)
    save_figure(figure, path)


def _add_legend(figure: Any, handles: Mapping[str, Any], rows: int) -> None:
    """Add a legend below the axes, in as few rows as fit the width, at least `rows`."""
    while True:
        columns = math.ceil(len(handles) / max(1, rows))
        legend = figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=columns, frameon=False
        )
        figure.draw_without_rendering()
        if columns <= 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()
        rows += 1


def _draw_panel(panel: Panel, axes: Any) -> None:
    drawn = Counter[str]()  # curves so far, by strategy
    for name, curve in panel.curves.items():
        marker = MARKERS[drawn[curve.strategy] % len(MARKERS)]
        drawn[curve.strategy] += 1
        spreads = [point.spread for point in curve.points]
        axes.errorbar(
            [point.x for point in curve.points],
            [point.y for point in curve.points],
            spreads if any(spreads) else None,
            color=curve.colour,
            marker=marker,
            markersize=5,
            linewidth=1.5,
            linestyle="-" if curve.has_line else "none",
            capsize=2,
            label=name,
        )
    for name, level in panel.levels.items():
        axes.axhline(
            level.points[0].y, color=level.colour, linewidth=1, linestyle=(0, (4, 3)), label=name
        )
    axes.margins(0.08)  # room for labels
    _scale(panel, axes)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _label_points(panel: Panel, axes: Any) -> None:
    """Write the labels beside their points; the layout must be final."""

    def on_page(x: float, y: float) -> NDArray[np.float64]:
        pixels = np.asarray(axes.transData.transform((x, y)), dtype=np.float64)
        return pixels * (POINTS_PER_INCH / float(axes.figure.dpi))

    lines, labelled = [], []
    for curve in panel.curves.values():
        corners = [on_page(point.x, point.y) for point in curve.points]
        lines += [np.stack(corners)] if curve.has_line else [corner[None] for corner in corners]
        for point, corner in zip(curve.points, corners, strict=True):
            ends = [on_page(point.x, point.y + sign * point.spread) for sign in (-1, 1)]
            lines += [np.stack([end, corner]) for end in ends if point.spread]
            labelled += [(point, corner, curve.colour)] if point.label else []
    anchors = np.array([corner for _, corner, _ in labelled]).reshape(-1, 2)
    offsets = label_offsets(anchors, lines)
    for (point, _, colour), offset in zip(labelled, offsets, strict=True):
        axes.annotate(
            point.label,
            (point.x, point.y),
            xytext=offset,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize="small",
            color=colour,
        )


def _scale(panel: Panel, axes: Any) -> None:
    """Set the ticks of x and the span of y."""
    low, high = axes.get_ylim()
    if high - low < panel.min_span:
        centre = (low + high) / 2
        axes.set_ylim(centre - panel.min_span / 2, centre + panel.min_span / 2)
    ticks = sorted({point.x for curve in panel.curves.values() for point in curve.points})
    if panel.log:
        from matplotlib.ticker import LogLocator, NullLocator

        axes.set_xscale("log")
        if len(ticks) <= MAX_TICKS:
            axes.set_xticks(ticks)
        else:
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda x, position: f"{x:,g}")
    elif all(float(tick).is_integer() for tick in ticks):
        axes.xaxis.get_major_locator().set_params(integer=True)


def ensure_matplotlib() -> None:
    """Raise InvalidInput if matplotlib is missing, before any time is spent on results."""
    new_figure((1, 1))


def ensure_plottable(path: Path) -> None:
    """Raise InvalidInput if a plot cannot be written to `path`, before any time is spent."""
    figure, _ = new_figure((1, 1))
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise InvalidInput(
            f"a plot cannot be written as {str(path)!r}: its name must end in .png, .svg or .pdf"
        )
    if path.is_dir() or not path.parent.is_dir():
        reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise InvalidInput(f"cannot write {path}: {reason}")


def new_figure(size: tuple[float, float], columns: int = 1, rows: int = 1) -> tuple[Any, Any]:
    """Return a figure of `size` inches, and its axes.

    Raises:
        InvalidInput: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_library("plots need matplotlib", "plot") from error
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure; the suffix of the path is the format.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot write {path}: {error}") from error


def label_offsets(
    anchors: NDArray[np.float64], lines: Sequence[NDArray[np.float64]]
) -> list[tuple[float, float]]:
    """Return the offset of each label's centre from its point.

    Each label in turn takes the direction in which it is farthest from everything drawn so far.

    Args:
        anchors: [labels, 2], the labelled points, in points of the page.
        lines: [n, 2] each, the corners of everything that is drawn, such points included.

    Returns:
        One (x, y) per label, in the same order.
    """
    drawn = np.concatenate([_samples(line) for line in lines] or [np.zeros((0, 2))])
    choices = LABEL_DISTANCE * np.array(
        [(math.cos(angle), math.sin(angle)) for angle in DIRECTIONS]
    )
    offsets = []
    for anchor in anchors:
        far = np.hypot(*(drawn - anchor).T) > 1e-6  # a point does not repel its own label
        obstacles = drawn[far]
        centres = anchor + choices  # [directions, 2]
        gaps = np.hypot(*np.moveaxis(centres[:, None] - obstacles, -1, 0))
        nearest = gaps.min(1, initial=2 * LABEL_DISTANCE).clip(max=2 * LABEL_DISTANCE)
        offset = choices[int(nearest.round(1).argmax())]
        drawn = np.concatenate([drawn, [anchor + offset]])
        offsets.append((float(offset[0]), float(offset[1])))
    return offsets


def _samples(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points along a line through the given corners, [n, 2]."""
    if len(line) == 1:
        return line
    parts = [np.linspace(a, b, SAMPLES) for a, b in pairwise(line)]
    return np.concatenate(parts)
