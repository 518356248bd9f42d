"""npad evaluate: quality and cost of one decoder on a test set."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from npad.cli.decoder_options import decodes
from npad.cli.evaluate_manifest import evaluate_manifest
from npad.cli.evaluate_speech import are_recordings, evaluate_recordings
from npad.cli.options import (
    DEFAULT_MODEL,
    MAX_LENGTH,
    OUTPUT,
    Device,
    MaxRows,
    MaxSource,
    ModelName,
    Precision,
)
from npad.cli.outputs import one_line
from npad.cli.placement import HERE, Placement, placed
from npad.cli.terminal import Decoded, bar, console, figures
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference
from npad.evaluate.comparison import intervals
from npad.evaluate.report import Report, evaluate
from npad.pipelines.manifests import holds_files
from npad.pipelines.pipeline import on_decoded
from npad.scale.worker import ModelSpec
from npad.search.decoder import Decoder
from npad.text.files import open_output, read_pairs

LEGEND = """\
NLL           mean -log p under the clean model; lower is better
BLEU, chrF    of the outputs against the references; higher is better
[low, high]   95 % interval: bootstrap over the sentences, 1,000 test sets
length ratio  words of the outputs over words of the references
distinct-n    distinct n-grams over all n-grams of the outputs
model calls   rows (sentences, chains, beam slots) through one step of the model
re-scored     calls of the clean model that scores what noisy chains found
"""


@decodes()
@placed
def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Source lines: plain, .gz, .xz, or -; or a folder or tar of pictures or WAV files."
        ),
    ],
    reference: Annotated[
        Path,
        typer.Argument(
            help="Reference translations, line by line; or a manifest of lines `file<TAB>text`."
        ),
    ],
    model: ModelName = DEFAULT_MODEL,
    device: Device = "auto",
    precision: Precision = "float32",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the outputs.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)
    ] = False,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens an output may have, its end token included. [200; captions 40]", min=1
        ),
    ] = None,
    max_rows: MaxRows = 1024,
    max_source: MaxSource = 1000,
    where: Placement = HERE,
    *,
    decoder: Decoder,
) -> None:
    """Translate a test set and measure NLL, BLEU, chrF, lengths, calls and time.

    If SOURCE is a folder or tar, caption or transcribe the files that a manifest names and measure
    BLEU-4 and CIDEr-D of captions, or word error rate; if every source line is the path of a WAV
    file, transcribe these.

    Examples:

        npad evaluate test.en test.cs --model runs/en-cs

        npad evaluate test.en.xz test.cs.xz -m runs/en-cs -d npad --chains 50 --sigma 0.5 --json

        npad evaluate test.en test.cs -m runs/en-cs --engine processes --workers 2

        npad evaluate images.tar test.tsv.xz -m runs/caption -d npad --chains 20

        npad evaluate recordings.txt transcripts.txt -m hf:whisper-tiny.en
    """
    if holds_files(source):
        if where.engine is not None:
            raise InvalidInput("pictures and recordings are evaluated without --engine")
        evaluate_manifest(
            source,
            reference,
            model,
            device,
            precision,
            decoder,
            output,
            as_json,
            max_length,
            max_rows,
        )
        return
    limit = MAX_LENGTH if max_length is None else max_length
    sources, references = read_pairs(source, reference)
    if are_recordings(sources):
        if where.engine is not None or precision != "float32":
            option = "--precision" if where.engine is None else "--engine"
            raise InvalidInput(f"recordings are evaluated without {option}; leave it out")
        evaluate_recordings(
            sources, references, model, device, decoder, output, as_json, limit, max_rows
        )
        return
    spec = ModelSpec(model, device, precision, max_source)
    with ExitStack() as open_files:
        translator = open_files.enter_context(where.translator(spec))
        out = open_files.enter_context(open_output(output)) if output is not None else None
        with bar("evaluating", len(sources)) as progress:
            decoded = Decoded(progress, "evaluating", len(sources))
            open_files.enter_context(on_decoded(decoded.add))
            report, translations = evaluate(
                translator,
                sources,
                references,
                decoder,
                limit,
                max_rows,
                lambda done, total: decoded.reach(done),
            )
        nll, bleu = intervals(translations, references)
        if as_json:
            print(json.dumps(asdict(report) | _intervals_as_json(nll, bleu)))
        else:
            console().print(figures(_rows(report, nll, bleu)), "")
            console().print(LEGEND, end="")
        if out is not None:
            out.writelines(one_line(translation.text) + "\n" for translation in translations)


def _intervals_as_json(nll: Difference, bleu: Difference) -> dict[str, list[float]]:
    return {"nll_interval": [nll.low, nll.high], "bleu_interval": [bleu.low, bleu.high]}


def _rows(report: Report, nll: Difference, bleu: Difference) -> dict[str, str]:
    return {
        "sentences": f"{report.sentences:,}",
        "NLL": f"{report.nll:.3f} [{nll.low:.3f}, {nll.high:.3f}]",
        "BLEU": f"{report.bleu:.2f} [{bleu.low:.2f}, {bleu.high:.2f}]",
        "chrF": f"{report.chrf:.2f}",
        "length ratio": f"{report.length_ratio:.3f}",
        "distinct-1, -2": f"{report.distinct_1:.3f}, {report.distinct_2:.3f}",
        "unique hypotheses": f"{report.unique:.1f} per sentence",
        "finished": f"{report.finished:.1%}",
        "model calls": f"{_a_sentence(report.calls, report)}, {report.calls:,} in all",
        "re-scored": f"{_a_sentence(report.rescored, report)}, {report.rescored:,} in all",
        "time": f"{report.seconds:.1f} s",
        "decoding": report.signature,
        "BLEU by": report.bleu_signature,
        "chrF by": report.chrf_signature,
    }


def _a_sentence(count: int, report: Report) -> str:
    return f"{count / report.sentences:,.1f} a sentence"
