"""Plots. The only module that imports matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npad.errors import InvalidInput, StorageError

COLOURS = ("#1f4e79", "#c8553d", "#3a7d44", "#8a5a9e", "#b08900", "#5b6770", "#2a9d8f")
MARKERS = "osD^vPX"


def attention(
    weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str], path: Path
) -> None:
    """Draw attention weights as a heat map.

    Args:
        weights: [target, source], one row per output token.
        source: source tokens.
        target: output tokens.
        path: the image file; its suffix is the format.

    Raises:
        InvalidInput: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    size = (1.6 + 0.42 * len(source), 1.6 + 0.36 * len(target))
    figure, axes = _figure(size)
    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(source)), source, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(target)), target)
    axes.set_xlabel("source")
    axes.set_ylabel("output")
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, label="weight", fraction=0.05, pad=0.02)
    _save(figure, path)


def losses(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw training and validation perplexity against updates.

    Args:
        records: the entries of a run's log.
        path: the image file; its suffix is the format.

    Raises:
        InvalidInput: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    figure, axes = _figure((7, 4.2))
    training = [
        (record["update"], record["perplexity"]) for record in records if "perplexity" in record
    ]
    valid = [
        (record["update"], record["valid_perplexity"])
        for record in records
        if "valid_perplexity" in record
    ]
    if training:
        axes.plot(*zip(*training, strict=True), color="#9db4c8", linewidth=1.2, label="training")
    if valid:
        axes.plot(
            *zip(*valid, strict=True),
            color="#1f4e79",
            linewidth=2,
            marker="o",
            markersize=4,
            label="validation",
        )
        update, lowest = min(valid, key=lambda point: point[1])
        note = {
            "xytext": (0, 14),
            "textcoords": "offset points",
            "ha": "center",
            "color": "#1f4e79",
        }
        axes.annotate(f"{lowest:.2f}", (update, lowest), **note)
    axes.set_yscale("log")
    axes.set_xlabel("update")
    axes.set_ylabel("perplexity per token")
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    _save(figure, path)


@dataclass(frozen=True)
class Panel:
    """One of several plots side by side."""

    x: str  # label of the x axis
    y: str  # label of the y axis
    series: Mapping[str, Sequence[tuple[float, float, float]]]  # by name: x, y, spread of y
    log: bool = False  # whether the x axis is logarithmic


def curves(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels side by side, with error bars and a common legend.

    A series of one point is drawn as a horizontal line across its panel.

    Args:
        panels: at least one.
        path: the image file; its suffix is the format.

    Raises:
        InvalidInput: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    figure, all_axes = _figure((5.2 * len(panels), 4.0), len(panels))
    for panel, axes in zip(panels, all_axes if len(panels) > 1 else [all_axes], strict=True):
        for i, (name, points) in enumerate(panel.series.items()):
            colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            if len(points) == 1:
                axes.axhline(
                    points[0][1], color=colour, linewidth=1, linestyle=(0, (4, 3)), label=name
                )
                continue
            x, y, spread = zip(*points, strict=True)
            axes.errorbar(
                x,
                y,
                spread,
                color=colour,
                marker=marker,
                markersize=4.5,
                linewidth=1.5,
                capsize=2,
                label=name,
            )
        if panel.log:
            axes.set_xscale("log")
            ticks = sorted(
                {x for points in panel.series.values() for x, _, _ in points if len(points) > 1}
            )
            if len(ticks) <= 8:
                axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
                axes.minorticks_off()
        elif all(float(x).is_integer() for points in panel.series.values() for x, _, _ in points):
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=min(len(names), 3 * len(panels)),
        frameon=False,
    )
    _save(figure, path)


def ensure_matplotlib() -> None:
    """Raise InvalidInput if matplotlib is missing, before any time is spent on results."""
    _figure((1, 1))


def _figure(size: tuple[float, float], columns: int = 1) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInput('plots need matplotlib: pip install "npad[plot]"') from error
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, columns)


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot write {path}: {error}") from error
