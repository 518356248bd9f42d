"""npad evaluate on a manifest: pictures by BLEU-4 and CIDEr-D, recordings by word error rate."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path

from npad.cli.evaluate_speech import evaluate_samples
from npad.cli.options import MAX_LENGTH
from npad.cli.outputs import one_line, opened
from npad.cli.terminal import Decoded, bar, console, figures
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.captioning import CaptionReport, evaluate_captions
from npad.pipelines.audio import read_wav
from npad.pipelines.captioning import MAX_CAPTION, Captioner
from npad.pipelines.loading import load_as, source_of
from npad.pipelines.manifests import read_files, read_manifest
from npad.pipelines.names import ModelReference
from npad.pipelines.pipeline import on_decoded
from npad.pipelines.transcription import Transcriber
from npad.search.decoder import Decoder

LEGEND = """\
NLL           mean -log p of a picture's caption under the clean model; lower is better
BLEU-4        corpus BLEU, closest reference length, no smoothing; higher is better
CIDEr-D       0 to 10, n-grams weighed by these pictures' references; higher is better
[low, high]   95 % interval: bootstrap over the pictures, 1,000 test sets
length ratio  words of the captions over words of the closest references
distinct-n    distinct n-grams over all n-grams of the captions
model calls   rows (pictures, chains, beam slots) through one step of the model
re-scored     calls of the clean model that scores what noisy chains found
Words are those of the Penn Treebank, in lower case and without punctuation.
"""


def evaluate_manifest(
    files: Path,
    manifest: Path,
    model: str,
    device: str,
    precision: str,
    decoder: Decoder,
    output: Path | None,
    as_json: bool,
    max_length: int | None,
    max_rows: int,
) -> None:
    """Decode the files that a manifest names, and print the figures of the model's task."""
    source = source_of(ModelReference.parse(model))
    if source == "text":
        rule = f"{files} is a folder or an archive, and {model} is a model of texts"
        raise InvalidInput(f"{rule}; give a file of lines")
    texts = read_manifest(manifest)
    if source == "picture":
        captioner = load_as(Captioner, model, device_named(device, "--device"), precision)
        read = {name: captioner.read(data, name) for name, data in read_files(files, texts)}
        with opened(output) as out, bar("evaluating", len(texts)) as progress:
            decoded = Decoded(progress, "evaluating", len(texts))
            with on_decoded(decoded.add):
                report, captions = evaluate_captions(
                    captioner,
                    [read[name] for name in texts],
                    list(texts.values()),
                    decoder,
                    MAX_CAPTION if max_length is None else max_length,
                    max_rows,
                )
            if out is not None:
                lines = zip(texts, captions, strict=True)
                out.writelines(f"{name}\t{one_line(caption.text)}\n" for name, caption in lines)
        _print(report, as_json)
        return
    if precision != "float32":
        raise InvalidInput("recordings are evaluated without --precision; leave it out")
    transcriber = load_as(Transcriber, model, device_named(device, "--device"))
    for name, transcripts in texts.items():
        if len(transcripts) > 1:
            rule = f"{manifest} has {len(transcripts)} transcripts of {name}"
            raise InvalidInput(f"{rule}; word errors are counted against one")
    samples = {
        name: read_wav(io.BytesIO(data), name, transcriber.rate)
        for name, data in read_files(files, texts)
    }
    evaluate_samples(
        transcriber,
        [samples[name] for name in texts],
        sum(map(len, samples.values())) / transcriber.rate,
        [transcripts[0] for transcripts in texts.values()],
        decoder,
        output,
        as_json,
        MAX_LENGTH if max_length is None else max_length,
        max_rows,
    )


def _print(report: CaptionReport, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(report)))
        return
    console().print(figures(_rows(report)), "")
    console().print(LEGEND, end="")


def _rows(report: CaptionReport) -> dict[str, str]:
    intervals = {
        "NLL": (report.nll, report.nll_interval, 3),
        "BLEU-4": (report.bleu, report.bleu_interval, 2),
        "CIDEr-D": (report.cider, report.cider_interval, 3),
    }
    return {
        "pictures": f"{report.pictures:,}, {report.references:,} references",
        **{
            name: f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
            for name, (value, (low, high), digits) in intervals.items()
        },
        "length ratio": f"{report.length_ratio:.3f}",
        "distinct-1, -2": f"{report.distinct_1:.3f}, {report.distinct_2:.3f}",
        "distinct captions": f"{report.captions:,}",
        "unique hypotheses": f"{report.unique:.1f} per picture",
        "finished": f"{report.finished:.1%}",
        "model calls": f"{report.calls:,}, {report.calls / report.pictures:,.1f} a picture",
        "re-scored": f"{report.rescored:,}, {report.rescored / report.pictures:,.1f} a picture",
        "time": f"{report.seconds:.1f} s",
        "decoding": report.signature,
    }
