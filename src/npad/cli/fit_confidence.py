"""npad fit-confidence: the quality to expect of an output, written beside the model."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from npad.cli.decoder_options import decodes
from npad.cli.options import DEFAULT_MODEL, OUTPUT, Device, ModelName, Precision, option
from npad.cli.terminal import bar, console, figures
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.confidence import fit_confidence
from npad.pipelines.loading import load_as
from npad.pipelines.names import SHIPPED, ModelReference
from npad.pipelines.translation import Translator
from npad.search.request import Decoding
from npad.storage import checkpoint
from npad.storage.confidence import FILE, Confidence
from npad.text.files import read_pairs

LEGEND = """\
confidence        the sentence chrF to expect of an output, by its log p per token
rank correlation  Spearman's, of log p per token with sentence chrF
error             mean over ten bins of |mean chrF - mean confidence|, fitted to one
                  half and measured on the other; and that of a constant
"""


@decodes()
def command(
    source: Annotated[
        Path, typer.Argument(help="Source lines of a validation set: plain, .gz, .xz, or -.")
    ],
    reference: Annotated[Path, typer.Argument(help="Their references, line by line.")],
    model: ModelName = DEFAULT_MODEL,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Annotated[bool, option("Print all figures as JSON.", "--json", panel=OUTPUT)] = False,
    *,
    decoding: Decoding,
) -> None:
    """Fit the confidence that a model's outputs are shown with.

    It is written into the model's folder. The confidence of an output is the sentence chrF to
    expect of it, by its log-probability per token: an isotonic regression on a validation set.
    `npad translate --json` then shows it, for every decoder.

    Example:

        npad fit-confidence valid.en valid.cs --model runs/en-cs
    """
    if model in SHIPPED:
        raise InvalidInput(
            f"{model} ships with npad and has a confidence already; fit a copy's, made by "
            f"npad pack {model} FOLDER"
        )
    folder = checkpoint.resolve(ModelReference.parse(model).require_folder("keep a confidence"))
    pairs = read_pairs(source, reference)
    translator = load_as(Translator, folder, device_named(device, "--device"), precision)
    with bar("fitting", len(pairs[0]), [source, reference]) as progress:
        confidence = fit_confidence(
            translator,
            *pairs,
            decoding,
            f"{source.name}, {reference.name}",
            partial(progress, "fitting"),
        )
    confidence.write(folder, checkpoint.weights_digest(folder))
    if as_json:
        print(json.dumps({"file": str(folder / FILE), **asdict(confidence)}))
        return
    table = figures(_rows(confidence))
    console().print(table, LEGEND, f"Written to {folder / FILE}.", sep="\n", soft_wrap=True)


def _rows(confidence: Confidence) -> dict[str, str]:
    errors = f"{confidence.error:.2f}; {confidence.constant_error:.2f} of a constant"
    return {
        "confidence": f"{confidence.chrf[0]:.1f} to {confidence.chrf[-1]:.1f}",
        "rank correlation": f"{confidence.rank_correlation:.3f}",
        "error": errors,
        "fitted to": f"{confidence.sentences:,} sentences, {confidence.data}",
        "decoder": confidence.decoder,
        "chrF by": confidence.metric,
    }


def summary(confidence: Confidence) -> str:
    """Return the fit in one line, for `npad info`."""
    return (
        f"expected chrF, {confidence.chrf[0]:.1f} to {confidence.chrf[-1]:.1f}, error "
        f"{confidence.error:.2f} ({confidence.sentences:,} sentences, {confidence.data}; "
        f"{confidence.decoder})"
    )


def as_record(confidence: Confidence | None) -> dict[str, Any] | None:
    """Return the fit for JSON, with the range of the map in place of its knots."""
    if confidence is None:
        return None
    record = asdict(confidence)
    del record["log_prob_per_token"]
    return record | {"chrf": [confidence.chrf[0], confidence.chrf[-1]]}
