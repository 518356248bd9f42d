"""npad evaluate: quality and cost of one decoder on a test set."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from npad.cli.decoder_options import decodes
from npad.cli.options import (
    DEFAULT_MODEL,
    OUTPUT,
    AsText,
    Device,
    MaxRows,
    MaxSource,
    ModelName,
    Precision,
    WithTime,
    option,
)
from npad.cli.placement import HERE, Placement, placed
from npad.cli.terminal import bar, console, figures
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.report import NLL, Evaluation, Report, with_times
from npad.metrics.metric import Metric, Reference
from npad.metrics.registry import METRICS, metric_names
from npad.pipelines.captioning import Captioner
from npad.pipelines.ffmpeg import SUFFIXES
from npad.pipelines.loading import load_as, source_of
from npad.pipelines.manifests import holds_files, read_files, read_manifest
from npad.pipelines.names import ModelReference
from npad.pipelines.pipeline import Pipeline, on_decoded
from npad.pipelines.sound import length, read, read_wav
from npad.pipelines.transcription import Transcriber
from npad.pipelines.translation import Translator
from npad.pipelines.writers import one_line
from npad.scale.worker import ModelSpec
from npad.search.decoder import Decoder
from npad.search.request import Decoding
from npad.text.files import Lines, open_output, read_pairs

OUTPUTS = {"sentence": "output", "recording": "transcript", "picture": "caption"}  # of a source
ROWS = {"sentence": "sentences", "recording": "windows", "picture": "pictures"}
LEGEND = """\
[low, high]   95 % interval: bootstrap over the {unit}s, 1,000 test sets
length ratio  words of the {output}s over words of the {references}
distinct-n    distinct n-grams over all n-grams of the {output}s
model calls   rows ({rows}, chains, beam slots) through one step of the model
re-scored     calls of the clean model that scores what noisy chains found
"""


@dataclass(frozen=True)
class EvaluationFiles:
    """The sources and references of a test set, as files have them.

    Attributes:
        kind: of the pipeline that reads them.
        references: of each source.
        sources: returns the sources as a pipeline reads them, and what progress counts: their
            number, or seconds of sound.
        names: of the files in a manifest; empty for lines.
    """

    kind: type[Pipeline]
    references: Sequence[Reference]
    sources: Callable[[Any], tuple[Iterable[Any], int]]
    names: Sequence[str] = ()

    @classmethod
    def read(cls, source: str, reference: str, model: str, are_texts: bool) -> EvaluationFiles:
        """Read lines of texts, or a folder or an archive and its manifest.

        Raises:
            InvalidInput: they cannot be read, or do not belong together.
        """
        if holds_files(source) and not are_texts:
            return cls._read_manifest(Path(source), Path(reference), model)
        sides = Lines.of(source, are_texts), Lines.of(reference, are_texts)
        sources, references = read_pairs(*sides)
        if not are_recordings(sources):
            return cls(Translator, references, lambda pipeline: (sources, len(sources)))
        present = sum(length(path).present for path in sources)
        seconds = math.ceil(present) if math.isfinite(present) else 0

        def recordings(pipeline: Transcriber) -> tuple[Iterable[Any], int]:
            return (read(path, pipeline.rate) for path in sources), seconds

        return cls(Transcriber, references, recordings)

    @classmethod
    def _read_manifest(cls, files: Path, manifest: Path, model: str) -> EvaluationFiles:
        medium = source_of(ModelReference.parse(model))
        if medium == "text":
            rule = f"{files} is a folder or an archive, and {model} is a model of texts"
            raise InvalidInput(f"{rule}; give a file of lines")
        texts = read_manifest(manifest)
        if medium == "picture":

            def pictures(pipeline: Captioner) -> tuple[Iterable[Any], int]:
                read = {name: pipeline.read(data, name) for name, data in read_files(files, texts)}
                return [read[name] for name in texts], len(texts)

            return cls(Captioner, list(texts.values()), pictures, list(texts))
        for name, transcripts in texts.items():
            if len(transcripts) > 1:
                rule = f"{manifest} has {len(transcripts)} transcripts of {name}"
                raise InvalidInput(f"{rule}; word errors are counted against one")

        def recordings(pipeline: Transcriber) -> tuple[Iterable[Any], int]:
            content, rate = read_files(files, texts), pipeline.rate
            read = {name: read_wav(io.BytesIO(data), name, rate) for name, data in content}
            return [read[name] for name in texts], math.ceil(sum(map(len, read.values())) / rate)

        return cls(Transcriber, [transcript for (transcript,) in texts.values()], recordings)


def are_recordings(sources: Sequence[str]) -> bool:
    """Return whether the lines of a file are paths of recordings."""
    return bool(sources) and all(source.lower().endswith(SUFFIXES) for source in sources)


@decodes()
@placed
def command(
    source: Annotated[
        str,
        typer.Argument(
            help="File of source lines: plain, .gz, .xz, or -; or a folder or tar of pictures or "
            "WAV files."
        ),
    ],
    reference: Annotated[
        str,
        typer.Argument(
            help="Reference translations, line by line; or a manifest of lines `file<TAB>text`."
        ),
    ],
    model: ModelName = DEFAULT_MODEL,
    are_texts: AsText = False,
    device: Device = "auto",
    precision: Precision = "float32",
    output: Annotated[Path | None, option("File for the outputs.", "--output", "-o")] = None,
    as_json: Annotated[bool, option("Print one JSON object.", "--json", panel=OUTPUT)] = False,
    max_length: Annotated[
        int | None,
        option("Tokens an output may have, its end token included. [200; captions 40]", min=1),
    ] = None,
    metric: Annotated[
        list[str] | None,
        option(
            f"{', '.join(metric_names())}; repeat it for several. [bleu, chrf; of "
            "recordings wer; of pictures bleu4, cider]",
            names=metric_names(),
        ),
    ] = None,
    max_rows: MaxRows = 1024,
    max_source: MaxSource = 1000,
    with_time: WithTime = False,
    where: Placement = HERE,
    *,
    decoder: Decoder,
) -> None:
    """Measure quality and cost of a decoder on a test set.

    Prints NLL, BLEU, chrF or other metrics, lengths, model calls and time. If SOURCE is a folder or
    tar, caption or transcribe the files that a manifest names and measure BLEU-4 and CIDEr-D of
    captions, or word error rate; if every source line is the path of a WAV file, transcribe
    these.

    Examples:

        npad evaluate test.en test.cs --model runs/en-cs

        npad evaluate test.en.xz test.cs.xz -m runs/en-cs -d npad --chains 50 --sigma 0.5 --json

        npad evaluate test.en test.cs -m runs/en-cs --engine processes --workers 2

        npad evaluate images.tar test.tsv.xz -m runs/caption -d npad --chains 20

        npad evaluate recordings.txt transcripts.txt -m whisper-tiny.en
    """
    files = EvaluationFiles.read(source, reference, model, are_texts)
    if files.kind is not Translator and where.engine is not None:
        raise InvalidInput("--engine does not apply to pictures and recordings; leave it out")
    if with_time and (files.kind is not Translator or where.engine is not None):
        raise InvalidInput("--time is measured on texts in this process, without --engine")
    if files.kind is Transcriber and precision != "float32":
        raise InvalidInput("--precision does not apply to recordings; leave it out")
    with ExitStack() as stack:
        pipeline: Pipeline
        if files.kind is Translator:
            spec = ModelSpec(model, device, precision, max_source)
            pipeline = stack.enter_context(where.translator(spec))
        else:
            pipeline = load_as(files.kind, model, device_named(device, "--device"), precision)
        out = stack.enter_context(open_output(output)) if output is not None else None
        sources, total = files.sources(pipeline)
        with bar("evaluating", total) as decoded:
            stack.enter_context(on_decoded(decoded.add))
            limit = pipeline.max_length if max_length is None else max_length
            decoding = Decoding(decoder, limit, max_rows)
            test_set = Evaluation(pipeline, sources, files.references, metric)
            report, outputs = test_set.evaluate(decoding, lambda done, total: decoded.reach(done))
        if with_time:
            with bar("timing") as progress:
                step, texts = partial(progress, "timing"), list(sources)
                report = with_times(pipeline, texts, {"": decoding}, {"": report}, step)[""]
        if as_json:
            print(json.dumps(report.to_json()))
        else:
            console().print(figures(_rows(report)), "")
            console().print(_legend(report), end="")
        if out is not None:
            names = [f"{name}\t" for name in files.names] or [""] * len(outputs)
            lines = zip(names, outputs, strict=True)
            out.writelines(f"{name}{one_line(output.text)}\n" for name, output in lines)


def _metrics(report: Report) -> list[Metric]:
    return [METRICS[name] for name in report.scores if name != NLL]


def _rows(report: Report) -> dict[str, str]:
    """Return the figures by name, as they are printed."""
    size, unit = report.size, report.unit
    rows = {f"{unit}s": f"{size:,}"}
    if report.references > size:
        rows[f"{unit}s"] += f", {report.references:,} references"
    if report.sound_seconds:
        rows[f"{unit}s"] += f", {report.sound_seconds:,.1f} seconds"
    nll = report.scores[NLL]
    rows["NLL"] = f"{nll.value:.3f} [{nll.low:.3f}, {nll.high:.3f}]"
    for metric in _metrics(report):
        score, digits = report.scores[metric.name], metric.digits
        value = f"{score.value:.{digits}f}" + (f" {metric.unit}" if metric.unit else "")
        rows[metric.title] = f"{value} [{score.low:.{digits}f}, {score.high:.{digits}f}]"
        if metric.name == "wer":
            errors, _, words = report.statistics["wer"].sum(0)
            rows["word errors"] = f"{errors:,.0f} of {words:,.0f} words"
    if report.length_ratio is not None:
        rows["length ratio"] = f"{report.length_ratio:.3f}"
    rows["distinct-1, -2"] = f"{report.distinct_1:.3f}, {report.distinct_2:.3f}"
    if unit == "picture":
        rows["distinct captions"] = f"{report.texts:,}"
    calls = {"model calls": report.calls, "re-scored": report.rescored}
    rows |= {
        "unique hypotheses": f"{report.unique:.1f} per {unit}",
        "finished": f"{report.finished:.1%}",
        **{name: f"{n / size:,.1f} per {unit}, {n:,} in total" for name, n in calls.items()},
        "time": f"{report.seconds:.1f} s, {size / report.seconds:,.1f} {unit}s per second",
        **_times(report),
        "decoding": report.signature,
    }
    if report.sound_seconds:
        rows["time"] += f", {report.seconds / report.sound_seconds:.3f} of real time"
    signatures = {f"{metric.title} by": metric.signature() for metric in _metrics(report)}
    return rows | {name: signature for name, signature in signatures.items() if signature}


def _times(report: Report) -> dict[str, str]:
    """Return the times of one sentence alone and of many together, if they were measured."""
    if not report.times:
        return {}
    alone, many = report.in_words()
    return {
        f"one {report.unit} alone": f"{alone}, on {report.times[0].machine}",
        f"batches of {report.times[1].batch}": many,
    }


def _legend(report: Report) -> str:
    """Return what the rows mean."""
    titles: dict[str, list[str]] = {"mean -log p under the clean model; lower is better": ["NLL"]}
    for metric in _metrics(report):
        titles.setdefault(f"{metric.description}; {metric.direction}", []).append(metric.title)
    lines = [f"{', '.join(names):13} {meaning}\n" for meaning, names in titles.items()]
    several = report.references > report.size  # of a source
    lines.append(
        LEGEND.format(
            unit=report.unit,
            output=OUTPUTS[report.unit],
            rows=ROWS[report.unit],
            references="closest references" if several else "references",
        )
    )
    notes = dict.fromkeys(f"{metric.note}\n" for metric in _metrics(report) if metric.note)
    return "".join([*lines, *notes])
