"""Pictures. The one place that imports matplotlib, which is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npad.errors import InvalidInput, StorageError


def attention(weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str], path: Path) -> None:
    """Where the model looked: weights [target, source], one row a symbol of the output."""
    size = (1.6 + 0.42 * len(source), 1.6 + 0.36 * len(target))
    figure, axes = _figure(size)
    picture = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(source)), source, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(target)), target)
    axes.set_xlabel("source")
    axes.set_ylabel("output")
    axes.tick_params(length=0)
    figure.colorbar(picture, ax=axes, label="weight", fraction=0.05, pad=0.02)
    _save(figure, path)


def losses(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Perplexity against updates, of training and of validation, from a run's log."""
    figure, axes = _figure((7, 4.2))
    training = [(record["update"], record["perplexity"]) for record in records if "perplexity" in record]
    valid = [(record["update"], record["valid_perplexity"]) for record in records if "valid_perplexity" in record]
    if training:
        axes.plot(*zip(*training, strict=True), color="#9db4c8", linewidth=1.2, label="training")
    if valid:
        axes.plot(*zip(*valid, strict=True), color="#1f4e79", linewidth=2, marker="o", markersize=4, label="validation")
        update, lowest = min(valid, key=lambda point: point[1])
        note = {"xytext": (0, 14), "textcoords": "offset points", "ha": "center", "color": "#1f4e79"}
        axes.annotate(f"{lowest:.2f}", (update, lowest), **note)
    axes.set_yscale("log")
    axes.set_xlabel("update")
    axes.set_ylabel("perplexity a symbol")
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    _save(figure, path)


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInput('plots need matplotlib: pip install "npad[plot]"') from error
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot write {path}: {error}") from error
