"""npad fit-confidence: the quality to expect of an output, written beside the model."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from npad.cli.decoder_options import decodes
from npad.cli.evaluate import EvaluationFiles
from npad.cli.options import DEFAULT_MODEL, OUTPUT, Device, ModelName, Precision, option
from npad.cli.terminal import bar, console, figures
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.confidence import ConfidenceFit, fit_confidence
from npad.evaluate.plots import Curve, Panel, Point, curves, ensure_plottable
from npad.evaluate.risk import risk_by_coverage
from npad.metrics.registry import metric_named, metric_names
from npad.pipelines.loading import confidence_place, load_as
from npad.pipelines.names import SHIPPED, ModelReference
from npad.search.request import Decoding
from npad.signals import SIGNALS
from npad.storage.confidence import BEST, FILE, Confidence

LEGEND = """\
confidence        the {metric} to expect of an output, by the signal that predicts it best
signals           root mean squared error of each one's prediction, on held-out folds
figures           of a signal chosen and a map fitted on one half, on the other; 95 %
                  intervals; in brackets the difference to log p per token alone
bad               {bad}
error             mean over ten bins of |mean quality - mean confidence|
"""
PLOTTED = 40  # points of a curve


@decodes()
def command(
    source: Annotated[
        str,
        typer.Argument(
            help="Source lines of a validation set: plain, .gz, .xz, or -; or a folder or tar of "
            "pictures or WAV files."
        ),
    ],
    reference: Annotated[
        str,
        typer.Argument(help="Their references, line by line; or a manifest of `file<TAB>text`."),
    ],
    model: ModelName = DEFAULT_MODEL,
    device: Device = "auto",
    precision: Precision = "float32",
    signal: Annotated[
        list[str] | None,
        option(
            f"{', '.join(SIGNALS.names())}, with its fields in brackets; several times for "
            "several. [twelve of them]",
            names=SIGNALS.names(),
        ),
    ] = None,
    metric: Annotated[
        str | None, option("Quality to expect. [chrf; of recordings wer]", names=metric_names())
    ] = None,
    plot: Annotated[
        Path | None,
        option(
            "Image file for risk by coverage: the loss of the outputs that one would keep.",
            panel=OUTPUT,
        ),
    ] = None,
    as_json: Annotated[bool, option("Print all figures as JSON.", "--json", panel=OUTPUT)] = False,
    *,
    decoding: Decoding,
) -> None:
    """Fit the confidence that a model's outputs are shown with.

    It is written into the model's folder. The confidence of an output is the quality to expect of
    it: sentence chrF, or word accuracy of a transcript. Cross-validation chooses the signal that it
    is read from: log-probability per token, or how far the other candidates of the search agree.
    The latter holds for one decoder; all others keep log-probability.

    Examples:

        npad fit-confidence valid.en valid.cs --model runs/en-cs

        npad fit-confidence valid.en valid.cs -m runs/en-cs -d npad -M 10 --plot risk.png

        npad fit-confidence recordings/ transcripts.tsv -m whisper-tiny.en
    """
    if model in SHIPPED:
        raise InvalidInput(
            f"{model} ships with npad and has a confidence already; fit one for a copy, made by "
            f"npad pack {model} FOLDER"
        )
    if plot is not None:
        ensure_plottable(plot)
    folder, weights = confidence_place(ModelReference.parse(model))
    signals = [SIGNALS.parse(name) for name in signal] if signal else None
    expected = None if metric is None else metric_named(metric)
    files = EvaluationFiles.read(source, reference, model, are_texts=False)
    pipeline = load_as(files.kind, model, device_named(device, "--device"), precision)
    names = [Path(source), Path(reference)]
    sources, _ = files.sources(pipeline)
    with bar("fitting", len(files.references), names) as progress:
        fit = fit_confidence(
            pipeline,
            list(sources),
            files.references,
            decoding,
            ", ".join(path.name for path in names),
            partial(progress, "fitting"),
            signals,
            expected,
        )
    fit.confidence.write(folder, weights)
    if plot is not None:
        draw(fit, plot, f"{model}, {fit.confidence.data}")
    if as_json:
        record = {"file": str(folder / FILE), **asdict(fit.confidence)}
        record["held_out_errors"] = fit.outputs.held_out_errors
        record["figures"] = {
            name: {part: asdict(value) for part, value in rows.items()}
            for name, rows in fit.figures.items()
        }
        print(json.dumps(record))
        return
    table, expects = figures(_rows(fit)), metric_named(fit.confidence.measure)
    bad = "has an error" if expects.lower_is_better else "is in the lowest quarter"
    legend = LEGEND.format(metric=_title(fit.confidence), bad=f"an output that {bad}")
    console().print(table, legend, f"Written to {folder / FILE}.", sep="\n", soft_wrap=True)


def _title(confidence: Confidence) -> str:
    metric = metric_named(confidence.measure)
    return f"100 - {metric.title}" if metric.lower_is_better else metric.title


def _rows(fit: ConfidenceFit) -> dict[str, str]:
    confidence, errors = fit.confidence, fit.outputs.held_out_errors
    shown = confidence.shown
    rows = {
        "confidence": f"{shown.expected[0]:.1f} to {shown.expected[-1]:.1f}",
        "signal": shown.signal,
        "signals": "\n".join(f"{error:.2f}  {name}" for name, error in errors.items()),
    }
    for name, parts in fit.figures.items():
        value, difference = parts["confidence"], parts["difference"]
        rows[name] = f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"
        if shown is not confidence.plain:
            low, high = difference.low, difference.high
            rows[name] += f" ({difference.value:+.3f} [{low:+.3f}, {high:+.3f}])"
    rows["error of a constant"] = f"{confidence.constant_error:.2f}"
    rows["fitted to"] = f"{confidence.sentences:,} sentences, {confidence.data}"
    rows["decoder"] = confidence.decoder
    if confidence.metric:
        rows["quality by"] = confidence.metric
    return rows


def draw(fit: ConfidenceFit, path: Path, title: str) -> None:
    """Draw risk by coverage, of the confidence and of log p per token, each on held-out halves."""
    held, losses = fit.outputs.by_halves, BEST - fit.outputs.quality
    shown = {"confidence": ("NPAD", held.expected), "log p per token": ("beam", held.plain)}
    places = np.unique(np.linspace(0, len(losses) - 1, PLOTTED + 1).astype(int)[1:])
    panels = []
    for label, loss in (("loss: 100 - quality", losses), ("share of bad outputs", fit.outputs.bad)):
        lines = {}
        for name, (colour, expected) in shown.items():
            risk = risk_by_coverage(expected, loss)
            points = [Point((i + 1) / len(loss), float(risk[i])) for i in places]
            lines[name] = Curve(colour, points)
        panels.append(Panel("coverage: share of outputs kept, most confident first", label, lines))
    curves(panels, path, title)


def summary(confidence: Confidence) -> str:
    """Return the fit in one line, for `npad info`."""
    shown = confidence.shown
    return (
        f"expected {_title(confidence)}, {shown.expected[0]:.1f} to {shown.expected[-1]:.1f}, by "
        f"{shown.signal}, error {confidence.error:.2f} ({confidence.sentences:,} sentences, "
        f"{confidence.data}; {confidence.decoder})"
    )


def as_record(confidence: Confidence | None) -> dict[str, Any] | None:
    """Return the fit for JSON, with the range of the map in place of its knots."""
    if confidence is None:
        return None
    shown = confidence.shown
    record = asdict(confidence) | {"signal": shown.signal}
    for name in ("plain", "chosen"):
        del record[name]
    return record | {"expected": [shown.expected[0], shown.expected[-1]]}
