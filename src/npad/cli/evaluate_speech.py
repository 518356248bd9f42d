"""npad evaluate on recordings: word error rate and cost of one decoder."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from npad.cli.outputs import one_line, opened
from npad.cli.terminal import Decoded, bar, console, figures
from npad.engine.devices import device_named
from npad.evaluate.speech import SpeechReport, evaluate_speech
from npad.pipelines.audio import length, read
from npad.pipelines.loading import load_as
from npad.pipelines.pipeline import on_decoded
from npad.pipelines.transcription import Transcriber
from npad.search.decoder import Decoder

LEGEND = """\
WER           word errors over words of the references, of normalised English; lower is better
[low, high]   95 % interval: bootstrap over the recordings, 1,000 test sets
NLL           mean -log p of a recording's transcript under the clean model; lower is better
model calls   rows (windows, chains, beam slots) through one step of the model
re-scored     calls of the clean model that scores what noisy chains found
"""


def are_recordings(sources: Sequence[str]) -> bool:
    """Return whether the lines of a file are paths of WAV files."""
    return bool(sources) and all(source.lower().endswith(".wav") for source in sources)


def evaluate_recordings(
    sources: Sequence[str],
    references: Sequence[str],
    model: str,
    device: str,
    decoder: Decoder,
    output: Path | None,
    as_json: bool,
    max_length: int,
    max_rows: int,
) -> None:
    """Transcribe the WAV files that lines name, and print the figures."""
    seconds = sum(length(path).present for path in sources)
    transcriber = load_as(Transcriber, model, device_named(device, "--device"))
    recordings = (read(path, transcriber.rate) for path in sources)
    evaluate_samples(
        transcriber,
        recordings,
        seconds,
        references,
        decoder,
        output,
        as_json,
        max_length,
        max_rows,
    )


def evaluate_samples(
    transcriber: Transcriber,
    recordings: Iterable[Tensor],
    seconds: float,
    references: Sequence[str],
    decoder: Decoder,
    output: Path | None,
    as_json: bool,
    max_length: int,
    max_rows: int,
) -> None:
    """Transcribe recordings of so many seconds in all, and print the figures."""
    total = math.ceil(seconds)
    with opened(output) as out:
        with bar("evaluating, seconds", total) as progress:
            decoded = Decoded(progress, "evaluating, seconds", total)
            with on_decoded(decoded.add):
                report, texts = evaluate_speech(
                    transcriber, recordings, references, decoder, max_length, max_rows
                )
        if as_json:
            print(json.dumps(asdict(report)))
        else:
            console().print(figures(_rows(report)), "")
            console().print(LEGEND, end="")
        if out is not None:
            out.writelines(one_line(text) + "\n" for text in texts)


def _rows(report: SpeechReport) -> dict[str, str]:
    low, high = report.wer_interval
    sound = report.sound_seconds
    return {
        "recordings": f"{report.recordings:,}, {sound:,.1f} seconds",
        "WER": f"{report.wer:.2f} % [{low:.2f}, {high:.2f}]",
        "word errors": f"{report.errors:,} of {report.words:,} words",
        "NLL": f"{report.nll:.3f}",
        "finished": f"{report.finished:.1%}",
        "model calls": f"{report.calls:,}",
        "re-scored": f"{report.rescored:,}",
        "time": f"{report.seconds:.1f} s, {report.seconds / max(sound, 1e-9):.3f} of real time",
        "decoding": report.signature,
    }
